"""The doctor's arithmetic, the list of suspects, and what it says about what it found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.errors import FeedError
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.spec import DrafterSpec, VocabMap
from draftrt.validate.compare.checkpoint import Fresh, fact_differences, factor_of, relation
from draftrt.validate.doctor.cli import as_json, as_text, verdicts
from draftrt.validate.doctor.examine import Examination, by_context, by_position
from draftrt.validate.doctor.prompt_forms import FormResult
from draftrt.validate.doctor.recording import Text, whole_rounds
from draftrt.validate.doctor.statistics import Estimate, estimate, paired, student_quantile
from draftrt.validate.doctor.suspects import Setting, Suspect, fresh_suspects, suspects_of
from draftrt.validate.doctor.trial import Tried
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH, sliding_window=6)
    return load_drafter(write_drafter(tmp_path_factory.mktemp("toy"), toy), None).spec


@pytest.mark.parametrize(  # from printed tables of Student's distribution
    ("probability", "freedom", "quantile"),
    [(0.975, 1, 12.706), (0.975, 10, 2.228), (0.9995, 30, 3.646), (0.95, 5, 2.015), (0.5, 3, 0.0)],
)
def test_quantiles_are_those_of_printed_tables(
    probability: float, freedom: int, quantile: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(quantile, abs=2e-3)


def test_an_interval_over_groups_of_one_is_that_of_a_plain_mean() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    found = estimate([[value] for value in values])
    assert found.mean == pytest.approx(sum(values) / 6)
    assert found.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(6))
    low, high = found.interval()
    assert high - low == pytest.approx(2 * 2.571 * found.standard_error, rel=1e-3)


def test_rounds_of_one_text_count_as_one_draw() -> None:
    alike = estimate([[1.0] * 50, [3.0] * 50])
    assert alike.mean == 2.0
    assert alike.standard_error == pytest.approx(1.0)  # as of two draws, not of a hundred
    assert estimate([[1.0, 2.0]]).interval() == (-math.inf, math.inf)
    assert not estimate([[5.0] * 100]).is_above(0.0, false_alarms=0.5)


@pytest.mark.parametrize(  # one side: from printed tables of Student's distribution
    ("groups", "false_alarms", "margin"),
    [(2, 0.05, 6.314), (6, 0.05, 2.015), (6, 0.01, 3.365), (21, 0.01, 2.528), (41, 0.001, 3.307)],
)
def test_a_gain_is_real_when_chance_gives_it_as_seldom_as_was_asked(
    groups: int, false_alarms: float, margin: float
) -> None:
    for part, is_above in ((0.99, False), (1.01, True)):
        found = Estimate(
            mean=0.5 + part * margin * 0.2, standard_error=0.2, num_rounds=99, num_groups=groups
        )
        assert found.is_above(0.5, false_alarms=false_alarms) is is_above
        low, _ = found.interval(1 - 2 * false_alarms)
        assert (low > 0.5) is is_above


def test_an_error_over_texts_of_unequal_length_is_that_of_a_ratio() -> None:
    """By the jackknife's first order, in loops: residuals of whole texts, over all rounds."""
    texts = [[1.0, 2.0, 4.0], [0.0], [3.0, 3.0], [5.0, 1.0, 0.0, 2.0], []]
    found = estimate(texts)
    rounds = [value for text in texts for value in text]
    mean = sum(rounds) / 10
    squares = sum((sum(text) - len(text) * mean) ** 2 for text in texts if text)
    assert (found.num_rounds, found.num_groups) == (10, 4)
    assert found.mean == pytest.approx(mean)
    assert found.standard_error == pytest.approx(math.sqrt(4 / 3 * squares) / 10)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        texts = [rng.normal(rng.normal(), 1.0, size=8).tolist() for _ in range(6)]
        low, high = estimate(texts).interval(0.9)
        hits += low <= 0.0 <= high
    assert 0.875 < hits / 2000 < 0.925


def test_pairs_are_rounds_of_the_texts_that_both_have() -> None:
    found = paired([[3, 1]], [[1, 1], [5]])
    assert (found.mean, found.num_rounds, found.num_groups) == (1.0, 2, 2)


def changes(spec: DrafterSpec, setting: Setting, fact: str) -> list[str]:
    return [one.change for one in suspects_of(spec, setting) if one.fact == fact]


def test_every_usual_suspect_is_among_them_and_none_twice(spec: DrafterSpec) -> None:
    setting = Setting(num_layers=6, longest=100, tokens={258: "<|pad|>"}, theta=5e5, has_d2t=True)
    found = suspects_of(spec, setting)
    assert {one.fact for one in found} == {
        *("target_layer_ids", "features", "rope.layout", "rope.theta", "window", "is_causal"),
        *("sample_from_anchor", "position", "mask_token_id", "embedding_scale", "vocab_map"),
    }
    keys = [(repr(one.spec), one.normed, one.shift) for one in found]
    assert len(set(keys)) == len(keys)
    assert (repr(spec), frozenset(), 0) not in keys
    taps = [one.spec.target_layer_ids for one in found if one.fact == "target_layer_ids"]
    assert {(0, 2, 3), (2, 4, 5), (1, 3, 5), (1, 2, 4), (4, 3, 1)} <= set(taps)
    assert "500000 (the target's) instead of 10000" in changes(spec, setting, "rope.theta")
    assert "258 (<|pad|>) instead of 259" in changes(spec, setting, "mask_token_id")


def test_taps_stay_inside_the_target(spec: DrafterSpec) -> None:
    setting = Setting(num_layers=5, longest=100)
    shallow = suspects_of(replace(spec, target_layer_ids=(-1, 3, 4)), setting)
    taps = [one.spec.target_layer_ids for one in shallow if one.fact == "target_layer_ids"]
    assert taps
    assert all(-1 <= k < 5 for ids in taps for k in ids)


def test_windows_are_opened_moved_and_tried(spec: DrafterSpec) -> None:
    found = changes(spec, Setting(num_layers=6, longest=100), "window")
    assert found == [
        "full attention instead of 6",
        "5 instead of 6",
        "7 instead of 6",
        "counted from the anchor instead of the query",
    ]
    full = replace(spec, layers=tuple(replace(one, window=None) for one in spec.layers))
    setting = Setting(num_layers=6, longest=70, windows={48: "sliding_window of the drafter's"})
    assert changes(full, setting, "window") == [
        "16 instead of full attention",
        "32 instead of full attention",
        "48 (sliding_window of the drafter's) instead of full attention",
        "64 instead of full attention",
    ]


def text(accepted: Sequence[int], drafts: int = 3, start: int = 4) -> Text:
    anchors = tuple(start + 4 * index for index in range(len(accepted)))
    ids = tuple(range(anchors[-1] + 10)) if accepted else (1, 2)
    drafted = tuple(tuple(range(drafts)) for _ in accepted)
    return Text(ids=ids, num_prompt=3, anchors=anchors, drafted=drafted, accepted=tuple(accepted))


def test_matching_drafts_are_counted_up_to_the_first_other_token() -> None:
    one = text([0])
    assert one.num_matching(4, [5, 6, 7]) == 3
    assert one.num_matching(4, [5, 9, 7]) == 1
    assert one.num_matching(4, [6, 5, 7]) == 0
    assert one.num_matching(len(one.ids) - 2, [len(one.ids) - 1, 99]) == 1  # the text ends there


def test_rounds_without_a_whole_block_behind_them_are_left_out() -> None:

    texts = [text([1, 2, 3]), text([1, 1, 1]), text([0, 0, 0]), text([])]
    kept = whole_rounds(texts, 12)
    assert [len(one.anchors) for one in kept] == [2, 2, 2]
    with pytest.raises(FeedError, match=r"0 of 4 texts have a round .* expected at least 3"):
        whole_rounds(texts, 40)


def test_acceptance_is_told_by_position_and_by_context() -> None:
    texts = [text([3, 1], start=60), text([0, 2], start=60)]
    assert by_position(texts) == (0.75, 0.5, 0.25)
    found = by_context(texts)
    assert {place: one.mean for place, one in found.items()} == {(0, 63): 2.5, (64, 64): 2.5}


def examination(
    texts: Sequence[Text], spec: DrafterSpec, *, better: bool = False, expected: float | None = None
) -> Examination:
    length = estimate([[count + 1.0 for count in one.accepted] for one in texts])
    nothing = Estimate(mean=0.0, standard_error=0.1, num_rounds=9, num_groups=9)
    gain = Estimate(mean=1.5, standard_error=0.1, num_rounds=9, num_groups=9)
    suspect = Suspect(fact="rope.layout", change="neox instead of interleaved", spec=spec)
    tried = Tried(
        suspect=suspect,
        gain=gain if better else nothing,
        is_better=better,
        length=4.1 if better else None,
    )
    return Examination(
        bundle=Path("bundle"),
        texts=texts,
        length=length,
        by_position=by_position(texts),
        by_context=by_context(texts),
        graph_gain=nothing,
        is_graph_worse=False,
        tried=[tried],
        expected_length=expected,
    )


MIXED = [text([3, 1, 2]), text([0, 2, 1]), text([2, 2, 3])]


def test_a_healthy_pair_is_called_so_and_compared_with_its_card(spec: DrafterSpec) -> None:
    found = examination(MIXED, spec, expected=2.8)
    assert found.is_healthy
    assert verdicts(found)[0].startswith("as good as its card: 2.8 expected, within")
    assert "nothing better found" in verdicts(examination(MIXED, spec))[0]
    assert json.loads(json.dumps(as_json(found)))["healthy"] is True
    assert any("by position  0.89" in line for line in as_text(found))


def test_a_better_fact_is_told_with_both_lengths(spec: DrafterSpec) -> None:
    found = examination(MIXED, spec, better=True)
    assert not found.is_healthy
    wanted = "rope.layout: neox instead of interleaved would raise acceptance from 2.78 to 4.10"
    assert verdicts(found)[0].startswith(wanted)


def test_exactly_one_all_and_below_the_card_are_suspicious(spec: DrafterSpec) -> None:
    never = examination([text([0, 0])] * 3, spec)
    assert not never.is_healthy
    assert "no draft was ever kept: an acceptance length of exactly 1.000" in verdicts(never)[0]
    always = examination([text([3, 3])] * 3, spec)
    assert not always.is_healthy
    assert "every draft was kept" in verdicts(always)[0]
    below = examination(MIXED, spec, expected=9.0)
    assert not below.is_healthy
    assert "below its card: 2.78 tokens a round, 9.0 expected" in verdicts(below)[0]


def test_a_worse_graph_and_another_form_are_told(spec: DrafterSpec) -> None:
    gain = Estimate(mean=2.0, standard_error=0.1, num_rounds=9, num_groups=9)
    worse = replace(examination(MIXED, spec), is_graph_worse=True, graph_gain=gain)
    assert not worse.is_healthy
    assert (
        "the graph keeps 2.00 drafts a round fewer than its own PyTorch module"
        in verdicts(worse)[0]
    )
    form = FormResult(form="chat template", length=gain, gain=gain, is_better=True)
    other = replace(examination(MIXED, spec), forms=[form])
    assert not other.is_healthy
    assert "prompts chat template would raise acceptance" in verdicts(other)[0]


def test_facts_that_differ_are_told_part_by_part(spec: DrafterSpec) -> None:
    other = replace(
        spec,
        rope=replace(spec.rope, theta=5e5),
        mask_token_id=7,
        layers=(spec.layers[0], replace(spec.layers[1], is_causal=True)),
    )
    found = {one.name: (one.bundle, one.checkpoint) for one in fact_differences(spec, other)}
    assert found == {
        "rope.theta": ("10000.0", "500000.0"),
        "mask_token_id": ("259", "7"),
        "layers[1].is_causal": ("False", "True"),
    }
    fresh = Fresh(spec=other, tensors={}, facts=fact_differences(spec, other), weights=())
    tried = fresh_suspects(spec, fresh)
    facts = [one.fact for one in tried]
    assert sorted(facts) == ["checkpoint", "layers[1].is_causal", "mask_token_id", "rope.theta"]
    assert [one.is_fresh for one in tried] == [False, False, False, True]
    assert tried[-1].spec == other
    same = Fresh(spec=spec, tensors={}, facts=(), weights=())
    assert fresh_suspects(spec, same) == []
    reduced = replace(spec, vocab_map=VocabMap.OFFSET)  # asks for a weight that is not there
    lone = Fresh(spec=reduced, tensors={}, facts=fact_differences(spec, reduced), weights=())
    assert [one.fact for one in fresh_suspects(spec, lone)] == ["checkpoint"]


def test_damaged_weights_are_told_from_one_another() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    square = rng.standard_normal((5, 5)).astype(np.float32)
    assert relation(square.T.copy(), square) == "transposed"
    assert relation(weight.T.copy(), weight) == "transposed"
    assert relation(weight[::-1].copy(), weight) == "rows in another order"
    assert relation(weight[:, ::-1].copy(), weight) == "columns in another order"
    shuffled = rng.permutation(weight.ravel()).reshape(weight.shape)
    assert relation(shuffled, weight) == "the same values in another order"
    assert relation(weight * 2, weight) == "times 2"
    assert relation(weight[:3], weight) == "shape [3, 4], not [6, 4]"
    broken = weight.copy()
    broken[0, 0] = np.nan
    assert relation(broken, weight) == "1 values are not finite"
    nudged = weight.copy()
    nudged[2, 1] += 1
    assert relation(nudged, weight).startswith("1 of 24 values differ, by up to 1")
    assert factor_of(weight, weight) is None


def test_what_cannot_be_examined_is_refused(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(group, ["doctor", "acceptance", *words])
        return done.exit_code, done.stderr

    prompts = tmp_path / "prompts.txt"
    code, said = run(str(tmp_path), "--prompts", str(prompts))
    assert (code, "no manifest.json there" in said) == (1, True)
    assert run(str(tmp_path))[0] == 2
    code, said = run(str(tmp_path), "--prompts", str(prompts), "--num-prompts", "2")
    assert (code, "2 is not in the range x>=3" in said) == (2, True)
