"""The range report: every float16 tensor is seen, overflow is found, large features survive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftrt.compare.arrays import Finding
from draftrt.spec import DrafterSpec, Precision
from draftrt.tolerances import LARGEST_FEATURE
from draftrt.validate.parity.ranges import Point, RangeReport, as_json, as_text, record_ranges
from draftrt.validate.records.cases import read_case
from draftrt.validate.rounds.module import ReferenceRounds

torch = pytest.importorskip("torch")
CONTEXT = 160
TESTS = Path(__file__).resolve().parents[3]
GOLDEN = sorted((TESTS / "golden").glob("*/case.json"))


def pair(name: str) -> Any:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target

    return load_drafter(TESTS / "assets" / name, read_target(TESTS / "assets" / "tiny-target"))


def module_of(loaded: Any, precision: Precision, changed: str = "", factor: float = 1.0) -> Any:
    """The drafter in eager PyTorch; one of its weights may be scaled."""
    from draftrt.export.check.reference import reference_module
    from draftrt.export.weights.tensors import draft_tensors

    tensors = draft_tensors(loaded.spec, loaded.tensors, precision, CONTEXT)
    module = reference_module(loaded.spec, tensors)
    if changed:
        weight = module.get_parameter(changed)
        weight.data = weight.data * factor
    return module


def rounds_of(spec: DrafterSpec, scale: float) -> Iterator[Any]:
    """Four rounds whose largest feature is ``scale``."""
    from draftrt.export.check.feeds import round_feeds

    rng = np.random.default_rng(1)
    for length, rows in ((0, 40), (40, 1), (41, 5), (46, 8)):
        feeds = round_feeds(spec, rng, new_rows=rows, context_length=length)
        hidden = feeds["target_hidden"]
        yield feeds | {"target_hidden": hidden * np.float32(scale / np.abs(hidden).max())}


def report_of(
    loaded: Any, changed: str = "", factor: float = 1.0, features: float = LARGEST_FEATURE
) -> RangeReport:
    narrow = module_of(loaded, Precision.FP16, changed, factor)
    wide = module_of(loaded, Precision.FP32, changed, factor)
    rounds = rounds_of(loaded.spec, features)
    points, ids, count = record_ranges(narrow, wide, rounds, CONTEXT)
    return RangeReport(
        bundle=Path("b"), features=features, form="", num_rounds=count, points=points, ids=ids
    )


@pytest.mark.parametrize("name", ["tiny-dflash", "tiny-dspark"])
def test_features_of_6e4_leave_float16_finite_and_the_ids_as_in_float32(name: str) -> None:
    report = report_of(pair(name))
    assert report.is_finite
    assert report.points[0].share < 0.1
    assert bool(report.ids), report.ids.problem


def test_every_float16_product_and_cache_of_a_layer_is_a_point() -> None:
    loaded = pair("tiny-dspark")
    names = {point.name for point in report_of(loaded).points}
    linears = [f"self_attn.{name}_proj" for name in "qkvo"]
    linears += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    for linear in linears:
        assert {f"layers.1.{linear} · product", f"layers.1.{linear} · weight"} <= names
        assert {f"layers.1.self_attn.{name} · cache" for name in ("k_norm", "v_proj")} <= names
    assert {"lm_head · product", "markov_head.markov_w2 · product"} <= names
    assert not [name for name in names if name.startswith(("fc", "confidence"))]


def test_a_point_holds_the_largest_magnitude_of_all_rounds() -> None:
    loaded = pair("tiny-dflash")
    module = module_of(loaded, Precision.FP16)
    report = report_of(loaded)
    largest = {point.name: point.largest for point in report.points}
    weight = module.get_parameter("layers.1.mlp.up_proj.weight")
    assert largest["layers.1.mlp.up_proj · weight"] == float(weight.abs().max())
    logits = 0.0
    rounds = ReferenceRounds(module, Precision.FP16, CONTEXT)
    module.outputs = ("base_logits",)
    for feeds in rounds_of(loaded.spec, LARGEST_FEATURE):
        rounds.outputs = module.outputs
        logits = max(logits, float(np.abs(rounds.run(feeds)["base_logits"]).max()))
    assert largest["lm_head · product"] == logits


@pytest.mark.parametrize(
    ("changed", "factor", "where"),
    [
        ("layers.1.self_attn.v_proj.weight", 3e5, "layers.1.self_attn.v_proj"),
        ("layers.0.mlp.up_proj.weight", 1e6, "layers.0.mlp.up_proj"),
        ("norm.weight", 1e6, "norm · as float16"),
    ],
)
def test_an_overflow_is_found_where_it_begins(changed: str, factor: float, where: str) -> None:
    report = report_of(pair("tiny-dflash"), changed, factor)
    assert not report.is_finite
    over = [point.name for point in report.points if point.share > 1]
    assert any(name.startswith(where) for name in over)
    lines = as_text(report)
    assert lines[2].split()[-1] == "overflows"
    assert not as_json(report)["finite"]


@pytest.mark.parametrize("changed", ["mlp.down_proj", "self_attn.o_proj"])
def test_what_a_layer_adds_to_its_residual_stream_may_pass_float16(changed: str) -> None:
    loaded = pair("tiny-dflash")
    name = f"layers.0.{changed}.weight"
    before = max(
        float(point.largest)
        for point in report_of(loaded).points
        if point.name == f"layers.0.{changed} · product"
    )
    report = report_of(loaded, name, 6e4 / before / 4)
    assert report.is_finite
    assert bool(report.ids), report.ids.problem


@pytest.mark.extended
@pytest.mark.parametrize("case", GOLDEN, ids=lambda path: path.parent.name)
def test_the_golden_drafters_survive_features_of_6e4(case: Path) -> None:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.validate.records.golden import case_target

    record = read_case(case.parent)
    loaded = load_drafter(record.draft, case_target(record))
    rounds, length = [], 0
    for one in record.rounds:
        hidden = one.target_hidden * np.float32(LARGEST_FEATURE / np.abs(one.target_hidden).max())
        rounds.append(
            {
                "anchor": np.array([one.anchor], np.int64),
                "target_hidden": hidden,
                "context_length": np.array([length], np.int64),
            }
        )
        length += hidden.shape[1]
    narrow, wide = (module_of(loaded, kind) for kind in (Precision.FP16, Precision.FP32))
    points, ids, _ = record_ranges(narrow, wide, rounds, CONTEXT)
    assert all(point.share <= 1 for point in points)
    assert ids.num_equal >= 0.9 * ids.num_compared, ids.problem


def test_the_table_goes_from_the_largest_on_and_says_what_is_near_the_end() -> None:
    points = [Point("a", float("inf")), Point("b", 40000.0), Point("c", 1.5)]
    ids = Finding(output="draft_ids", is_same=True, num_equal=41, num_compared=42)
    report = RangeReport(
        bundle=Path("b"), features=6e4, form="as it is", num_rounds=3, points=points, ids=ids
    )
    lines = as_text(report)
    assert (
        lines[0]
        == "b: fp16 in PyTorch, 3 rounds, the target's features of prompts (as it is) up to 60000"
    )
    assert [line.split()[-1] for line in lines[2:5]] == ["overflows", "near", "fits"]
    assert "61.06%" in lines[3]
    assert lines[-1] == "draft ids: 41 of 42 as with the same weights in float32"
    assert json.loads(json.dumps(as_json(report)))["points"][0]["largest"] == "inf"
