"""What parity compares, and how a round is judged; the graphs themselves run in tests/parity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from draftrt.cli import group
from draftrt.compare.arrays import Finding
from draftrt.compare.measures import Judge, Measure
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.manifest_graphs import FileFindings
from draftrt.signature import Signature, TensorSpec
from draftrt.spec import DrafterSpec, Precision
from draftrt.tolerances import Limit
from draftrt.validate.parity.parity import ParityReport
from draftrt.validate.parity.report import as_json, as_text
from draftrt.validate.rounds.plan import PlannedRound, plan_rounds, windows_beyond, windows_of
from draftrt.validate.rounds.runners import RoundRunner
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter

EXACT = Limit(reason="test")
MOST = Limit(agreement=0.7, reason="test")
CLOSE = Limit(atol=0.1, reason="test")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH, block_size=8)  # 7 drafts
    return load_drafter(write_drafter(tmp_path_factory.mktemp("toy"), toy), None).spec


def test_rounds_cover_none_some_and_all_accepted_short_and_to_the_last_row(
    spec: DrafterSpec,
) -> None:
    rounds = [(one.context_length, one.new_rows) for one in plan_rounds(spec, 100, 4)]
    assert rounds[:4] == [(0, 5), (5, 1), (6, 4), (10, 8)]
    assert rounds[4:] == [(0, 79), (79, 1), (80, 4), (84, 8)]


def test_a_small_cache_gets_the_rounds_that_fit(spec: DrafterSpec) -> None:
    for capacity in range(spec.block_size + 2, 40):
        rounds = plan_rounds(spec, capacity, 6)
        assert all(one.new_rows >= 1 for one in rounds)
        ends = [one.context_length + one.new_rows + spec.block_size for one in rounds]
        assert max(ends) == capacity


def test_a_window_that_the_caches_never_reach_past_is_told(tmp_path: Path) -> None:
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH, block_size=8, sliding_window=40)
    windowed = load_drafter(write_drafter(tmp_path / "toy", toy), None).spec
    assert windows_of(windowed) == (40,)
    assert windows_beyond(windowed, plan_rounds(windowed, 48, 4)) == (40,)
    assert windows_beyond(windowed, plan_rounds(windowed, 49, 4)) == ()
    assert windows_beyond(windowed, plan_rounds(windowed, 100, 4)) == ()


def outputs(ids: list[int], *, logit: float = 0.0) -> dict[str, NDArray[Any]]:
    logits = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    logits[:, -1] += logit
    return {"draft_ids": np.array([ids]), "logits": logits, "hidden": logits}


def limits(ids: Limit) -> dict[str, Limit]:
    return {"draft_ids": ids, "logits": CLOSE, "hidden": CLOSE}


def test_exact_ids_fail_at_one_flip() -> None:
    judge = Judge(limits(EXACT), is_sequential=True)
    assert all(judge(outputs([1, 2, 3, 4]), outputs([1, 2, 3, 4])).values())
    found = judge(outputs([1, 2, 3, 4]), outputs([1, 2, 3, 5]))
    assert [name for name, one in found.items() if not one] == ["draft_ids"]
    assert judge.shares() == {}


def test_flips_that_limits_allow_are_counted_over_all_rounds() -> None:
    judge = Judge(limits(MOST), is_sequential=False)
    for ids in ([1, 2, 3, 4], [1, 2, 0, 0], [1, 2, 3, 4]):
        assert all(judge(outputs([1, 2, 3, 4]), outputs(ids)).values())
    share = judge.shares()["draft_ids"]
    assert (bool(share), share.num_equal, share.num_compared) == (True, 10, 12)
    for _ in range(2):
        judge(outputs([1, 2, 3, 4]), outputs([9, 9, 9, 9]))
    assert not judge.shares()["draft_ids"]
    assert judge.shares()["draft_ids"].problem == "10 of 20 agree, expected 70%"


def test_rows_behind_a_flip_are_left_out_of_a_sequential_head_only() -> None:
    want, got = outputs([1, 2, 3, 4]), outputs([1, 0, 3, 4], logit=5.0)
    sequential = Judge(limits(MOST), is_sequential=True)(want, got)
    assert bool(sequential["logits"])
    assert not sequential["hidden"]  # the backbone's rows do not depend on the drafts
    assert sequential["draft_ids"].num_compared == 2
    parallel = Judge(limits(MOST), is_sequential=False)(want, got)
    assert not parallel["logits"]


def test_a_lost_draft_is_a_difference_whatever_the_limit() -> None:
    judge = Judge(limits(MOST), is_sequential=True)
    assert not judge(outputs([1, 2, 3, 4]), outputs([1, 2, 3]))["draft_ids"]


def test_what_is_no_bundle_is_not_checked(tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["validate", "parity", str(tmp_path)])
    assert done.exit_code == 1
    assert "no manifest.json there" in done.stderr


def test_too_few_rounds_to_cover_every_acceptance_are_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["validate", "parity", str(tmp_path), "--rounds", "3"])
    assert done.exit_code == 2


def test_so_many_rounds_that_none_fits_are_planned_at_once(spec: DrafterSpec) -> None:
    rounds = plan_rounds(spec, 100, 10**9)
    assert max(one.context_length + one.new_rows for one in rounds) == 100 - spec.block_size
    assert len(rounds) < 100


@pytest.mark.parametrize("command", ["parity", "bisect", "ranges", "record", "matrix"])
def test_counts_that_no_machine_could_keep_are_wrong_usage(tmp_path: Path, command: str) -> None:
    words = {"record": ["--target", str(tmp_path), "-o", str(tmp_path / "case")]}.get(command, [])
    done = CliRunner().invoke(
        group, ["validate", command, str(tmp_path), *words, "--rounds", "999999999"]
    )
    assert done.exit_code == 2, done.output
    assert "is not in the range" in done.stderr


def report_of(**facts: Any) -> ParityReport:
    """A report in which everything is the same, but for what is said."""
    same = Finding(output="draft_ids", is_same=True, num_compared=4, num_equal=4)
    seen = Measure(output="hidden", name="cosine, smallest", seen=1.0, limit=0.9, is_least=True)
    planned = PlannedRound(context_length=0, new_rows=5, graph="draft.onnx")
    given: dict[str, Any] = {
        "bundle": Path("b"),
        "backend": "onnxruntime",
        "precision": Precision.FP32,
        "rounds": [planned],
        "findings": [{"draft_ids": same}],
        "shares": {"draft_ids": same},
        "measures": [seen],
        "limits": {"draft_ids": EXACT},
        "files": [FileFindings(file="draft.onnx")],
    }
    return ParityReport(**(given | facts))


def test_a_report_is_the_same_when_all_of_it_is() -> None:
    assert report_of().is_same
    assert "same" in "\n".join(as_text(report_of()))


WRONG = Finding(output="draft_ids", is_same=False, problem="another id")
FAR = Measure(output="hidden", name="cosine, smallest", seen=0.5, limit=0.9, is_least=True)


@pytest.mark.parametrize(
    "facts",
    [
        {"measures": [FAR]},
        {"measures": []},
        {"findings": [{}]},
        {"findings": []},
        {"rounds": [], "findings": []},
        {"findings": [{"draft_ids": WRONG}]},
        {"shares": {"draft_ids": WRONG}},
        {"files": [FileFindings(file="draft.onnx", sentences=("a node is another",))]},
    ],
    ids=["measure", "no measure", "no output", "no finding", "no round", "id", "share", "file"],
)
def test_each_part_of_a_report_counts(facts: dict[str, Any]) -> None:
    report = report_of(**facts)
    assert not report.is_same
    told = as_json(report) if report.findings else {}
    assert told.get("same", False) is False


def test_a_plan_is_compared_without_measures() -> None:
    assert report_of(backend="tensorrt-rtx", measures=[]).is_same


class OneRound:
    """Rounds that give a cache whose rows count up."""

    def run(self, feeds: Any) -> dict[str, NDArray[Any]]:
        return {"present_key_0": np.arange(40, dtype=np.float32).reshape(1, 1, 20, 2)}


def test_of_caches_the_rows_of_context_and_block_are_compared() -> None:
    cache = TensorSpec(
        name="present_key_0", dtype="float32", shape=(1, 1, 20, 2), alias="past_key_0"
    )
    past = replace(cache, name="past_key_0", alias=None)
    signature = Signature(inputs=(past,), outputs=(cache,), dimensions={})
    feeds = {"target_hidden": np.zeros((1, 3, 8)), "context_length": np.array([5])}
    with RoundRunner("one", signature, (cache,), 4, OneRound) as runner:
        found = runner.infer(feeds)["present_key_0"]
    assert found.shape == (1, 1, 5 + 3 + 4, 2)
    assert found[0, 0, -1, 0] == 22
