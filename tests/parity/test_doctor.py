"""The acceptance doctor: every suspect is found where it is planted, and none where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.spec import DrafterSpec, RopeLayout, VocabMap, WindowEdge
from draftrt.validate.doctor.suspects import Suspect
from draftrt.validate.doctor.trial import Tried
from tests.parity.recorded_pairs import Recorded, as_it_is, own_drafts, trained_pair
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter

pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("doctor")]
Change = Callable[[DrafterSpec], DrafterSpec]


@pytest.fixture(scope="session")
def prompts(assets: Path) -> list[str]:
    return (assets / "prompts.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def dflash(assets: Path, prompts: list[str]) -> Recorded:
    return trained_pair(assets, "tiny-dflash", prompts[:6], 40)


@pytest.fixture(scope="session")
def dspark(assets: Path, prompts: list[str]) -> Recorded:
    return trained_pair(assets, "tiny-dspark", prompts[:6], 40)


def rope(**fields: object) -> Change:
    return lambda spec: replace(spec, rope=replace(spec.rope, **fields))  # type: ignore[arg-type]


def layers(**fields: object) -> Change:
    def change(spec: DrafterSpec) -> DrafterSpec:
        changed = tuple(replace(one, **fields) for one in spec.layers)  # type: ignore[arg-type]
        return replace(spec, layers=changed)

    return change


def fact(**fields: object) -> Change:
    return lambda spec: replace(spec, **fields)  # type: ignore[arg-type]


def best(tried: list[Tried]) -> Tried:
    assert tried[0].is_better, [(one.suspect.change, one.gain) for one in tried[:3]]
    return tried[0]


PLANTED: tuple[tuple[str, Change, str, str], ...] = (
    (
        "every tap one up",
        fact(target_layer_ids=(2, 4, 5)),
        "target_layer_ids",
        "[1, 3, 4] instead of [2, 4, 5] (every tap one layer down)",
    ),
    (
        "interleaved",
        rope(layout=RopeLayout.INTERLEAVED),
        "rope.layout",
        "neox instead of interleaved",
    ),
    ("mask token", fact(mask_token_id=0), "mask_token_id", "3 (<|mask|>) instead of 0"),
    (
        "last tap one up",
        fact(target_layer_ids=(1, 3, 5)),
        "target_layer_ids",
        "[1, 3, 4] instead of [1, 3, 5] (tap 2 one layer down)",
    ),
    (
        "taps reversed",
        fact(target_layer_ids=(4, 3, 1)),
        "target_layer_ids",
        "[1, 3, 4] instead of [4, 3, 1] (features concatenated in the opposite order)",
    ),
    ("theta", rope(theta=1e6), "rope.theta", "10000 (the target's) instead of 1e+06"),
    ("window of 8", layers(window=8), "window", "full attention instead of 8"),
    (
        "embedding scale",
        fact(embedding_scale=math.sqrt(80)),
        "embedding_scale",
        "1 instead of 8.94427",
    ),
)


def check(pair: Recorded, change: Change, name: str, what: str) -> None:
    wrong = as_it_is(change(pair.spec))
    tried = pair.try_all(wrong)
    found = best(tried)
    assert (found.suspect.fact, found.suspect.change) == (name, what)
    assert found.suspect.spec == pair.spec
    case = pair.plant(as_it_is(pair.spec))
    assert found.length == pytest.approx(1 + sum(map(sum, case.base)) / sum(map(len, case.base)))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "name", "what"), [one[1:] for one in PLANTED], ids=[one[0] for one in PLANTED]
)
def test_a_fact_planted_in_the_shipped_pair_is_named(
    dflash: Recorded, change: Change, name: str, what: str
) -> None:
    check(dflash, change, name, what)


def test_the_shipped_pair_is_clean(dflash: Recorded) -> None:
    tried = dflash.try_all(as_it_is(dflash.spec))
    assert [one.suspect.change for one in tried if one.is_better] == []
    assert len(tried) > 20
    assert max(one.gain.mean for one in tried) < 0.5


@pytest.mark.extended
@pytest.mark.parametrize("is_later", [False, True])
def test_a_block_at_a_shifted_position_is_named(dflash: Recorded, is_later: bool) -> None:
    step = 1 if is_later else -1
    wrong = Suspect(fact="position", change="", spec=dflash.spec, shift=step)
    assert best(dflash.try_all(wrong)).suspect.change == "back"


@pytest.mark.extended
def test_rows_taken_one_off_are_named(dspark: Recorded) -> None:
    check(
        dspark,
        fact(sample_from_anchor=False),
        "sample_from_anchor",
        "true instead of false (row 0 drafts too)",
    )


@pytest.mark.extended
def test_the_other_shipped_pair_is_clean(dspark: Recorded) -> None:
    tried = dspark.try_all(as_it_is(dspark.spec))
    assert [one.suspect.change for one in tried if one.is_better] == []


TOYS: tuple[tuple[str, ToyDrafter, Change, str, str], ...] = (
    (
        "full for a window",
        ToyDrafter(
            kind=Kind.ZLAB_DFLASH,
            sliding_window=16,
            overrides={"is_causal": False, "layer_types": ["sliding_attention"] * 2},
        ),
        layers(window=None),
        "window",
        "16 instead of full attention",
    ),
    (
        "window one less",
        ToyDrafter(kind=Kind.ZLAB_DFLASH, sliding_window=6),
        lambda spec: replace(
            spec, layers=tuple(replace(one, window=one.window and 5) for one in spec.layers)
        ),
        "window",
        "6 instead of 5",
    ),
    (
        "window from the query",
        ToyDrafter(kind=Kind.SPECULATORS_DFLASH, sliding_window=5),
        layers(window_edge=WindowEdge.QUERY),
        "window",
        "counted from the anchor instead of the query",
    ),
    (
        "neox",
        ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, overrides={"rope_is_neox_style": False}),
        rope(layout=RopeLayout.NEOX),
        "rope.layout",
        "interleaved instead of neox",
    ),
    (
        "d2t as absolute ids",
        ToyDrafter(kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96),
        fact(vocab_map=VocabMap.ABSOLUTE),
        "vocab_map",
        "offset instead of absolute (target id = id + d2t[id])",
    ),
    (
        "d2t left out",
        ToyDrafter(kind=Kind.SPECULATORS_DFLASH, draft_vocab_size=96),
        fact(vocab_map=VocabMap.IDENTITY),
        "vocab_map",
        "offset instead of identity (target id = id + d2t[id])",
    ),
    (
        "raw embeddings in Gemma-4",
        ToyDrafter(kind=Kind.DEEPSPEC_GEMMA4),
        fact(embedding_scale=1.0),
        "embedding_scale",
        "sqrt(hidden_size) instead of 1",
    ),
    (
        "fill-in rows of DFlash2",
        ToyDrafter(kind=Kind.ZLAB_DFLASH2),
        fact(sample_from_anchor=True),
        "sample_from_anchor",
        "false instead of true (row 0 drafts nothing)",
    ),
    (
        "scaled positions",
        ToyDrafter(kind=Kind.ZLAB_DFLASH),
        rope(type="linear", factor=8.0),
        "rope.type",
        "default instead of linear (positions not scaled)",
    ),
    (
        "causal rows",
        ToyDrafter(kind=Kind.DEEPSPEC_DFLASH),
        layers(is_causal=True),
        "is_causal",
        "every layer sees the whole block",
    ),
)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("toy", "change", "name", "what"), [one[1:] for one in TOYS], ids=[one[0] for one in TOYS]
)
def test_a_fact_planted_in_a_toy_is_named(
    tmp_path: Path,
    toy_target: TargetCheckpoint,
    toy: ToyDrafter,
    change: Change,
    name: str,
    what: str,
) -> None:
    pair = own_drafts(write_drafter(tmp_path / "draft", toy), toy_target, 6, 40)
    found = best(pair.try_all(as_it_is(change(pair.spec))))
    assert (found.suspect.fact, found.suspect.change) == (name, what)
    assert found.length == pair.spec.num_draft_tokens + 1


@pytest.mark.extended
def test_features_that_should_be_normed_are_named(
    tmp_path: Path, toy_target: TargetCheckpoint
) -> None:
    folder = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    spec = own_drafts(folder, toy_target, 1, 8).spec
    truth = Suspect(fact="", change="", spec=spec, normed=frozenset({2}))
    pair = own_drafts(folder, toy_target, 6, 40, truth)
    found = best(pair.try_all(as_it_is(spec)))
    assert found.suspect.change == "last tap through the target's final norm instead of raw"


@pytest.mark.extended
@pytest.mark.parametrize("start", range(6, 196, 19))
@pytest.mark.parametrize("name", ["tiny-dflash", "tiny-dspark"])
def test_other_prompts_give_no_false_alarm(
    assets: Path, prompts: list[str], name: str, start: int
) -> None:
    pair = trained_pair(assets, name, prompts[start : start + 6], 40)
    tried = pair.try_all(as_it_is(pair.spec))
    assert [(one.suspect.change, one.gain) for one in tried if one.is_better] == []
