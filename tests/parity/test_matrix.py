"""Every golden case and both shipped pairs on ONNX Runtime, in all three precisions.

Families, heads, masks and RoPE forms are those of the cases.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from draftrt.cli import group
from draftrt.compare.arrays import Finding
from draftrt.spec import Precision
from draftrt.validate.records.cases import read_case
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.golden import case_target
from draftrt.validate.records.matrix import (
    IN_BF16,
    MatrixRow,
    MatrixSettings,
    Source,
    check_matrix,
    check_source,
)
from draftrt.validate.records.record import RecordOptions, record_case
from draftrt.validate.records.report import matrix_text
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
pytestmark = pytest.mark.parity

TESTS = Path(__file__).resolve().parent.parent
CASES = TESTS / "golden"
ASSETS = TESTS / "assets"
NAMES = sorted(path.parent.name for path in CASES.glob("*/case.json"))
LEAST_RECORDED = {Precision.FP32: 1.0, Precision.FP16: 0.9, Precision.BF16: 0.8}


def matrix(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["validate", "matrix", *map(str, arguments)])


def check_rows(rows: list[MatrixRow]) -> None:
    assert [row.precision for row in rows] == list(Precision)
    for row in rows:
        assert row.error is None, row.error
        assert row.parity is not None
        assert row.verdict == "same", [one for one in row.parity.measures if not one]
        assert row.parity.precision is row.precision
        longest = max(one.context_length + one.new_rows for one in row.parity.rounds)
        assert all(longest > window for window in row.parity.windows)
        assert {one.graph for one in row.parity.rounds} == {"draft.onnx", "draft.flexible.onnx"}
        measured = {(one.output, one.name) for one in row.parity.measures}
        assert {("logits", "KL divergence, largest"), ("hidden", "cosine, smallest")} <= measured
        assert bool(row.parity.shares) is (row.precision is Precision.FP16)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_drafter_is_the_same_in_every_precision(name: str) -> None:
    rows = check_source(Source(case=CASES / name), MatrixSettings())
    check_rows(rows)
    for row in rows:
        assert row.record
        if row.precision is Precision.FP32:
            assert {f"r{index}.tokens" for index in range(4)} <= set(row.record)
            assert {f"r{index}.logits" for index in range(4)} <= set(row.record)
            continue
        wheres = ("", IN_BF16) if row.precision is Precision.BF16 else ("",)
        for where in wheres:
            ids = row.record[where + "draft_ids"]
            assert isinstance(ids, Finding)
            assert ids.num_equal >= LEAST_RECORDED[row.precision] * ids.num_compared > 0


def test_a_shipped_drafter_is_the_same_in_every_precision() -> None:
    source = Source(draft=ASSETS / "tiny-dflash", target=ASSETS / "tiny-target")
    check_rows(check_source(source, MatrixSettings()))


def test_a_drafter_recorded_over_a_real_text_is_the_same_in_every_precision(tmp_path: Path) -> None:
    """Features of the target itself, anchors of its own decoding."""
    pytest.importorskip("transformers")
    options = RecordOptions(prompt="A song of 20 green bags:", num_rounds=6)
    target = ASSETS / "tiny-target"
    case = record_case(ASSETS / "tiny-dspark", target, tmp_path / "case", options)
    rows = check_source(Source(case=case), MatrixSettings())
    check_rows(rows)
    record = rows[0].record
    assert record
    assert {f"r{index}.tokens" for index in range(6)} <= set(record)
    assert {f"r{index}.confidence" for index in range(6)} <= set(record)


def test_the_cases_bring_windows_causal_layers_and_every_head() -> None:
    """What makes the matrix one; a case that goes must be replaced."""
    from draftrt.export.checkpoint.drafter import load_drafter

    cases = [read_case(CASES / name) for name in NAMES]
    specs = [load_drafter(case.draft, case_target(case)).spec for case in cases]
    assert {spec.family.value for spec in specs} == {"dflash", "dflash2", "dspark"}
    assert {spec.backbone.value for spec in specs} == {"qwen3", "gemma4"}
    heads = {spec.markov.type for spec in specs if spec.markov is not None}
    assert heads == {"vanilla", "gated", "rnn"}
    assert {spec.rope.layout.value for spec in specs} == {"neox", "interleaved"}
    assert {spec.rope.type for spec in specs} >= {"default", "yarn"}
    rules = {(rule.is_causal, rule.window is not None) for spec in specs for rule in spec.layers}
    assert rules >= {(True, True), (False, True), (False, False)}
    assert any(spec.num_padded_rows for spec in specs)
    assert {spec.vocab_map.value for spec in specs} >= {"identity", "offset"}


def test_a_folder_that_is_no_case_is_told_and_stops_no_other(tmp_path: Path) -> None:
    done = matrix(tmp_path, tmp_path / "absent", "--precision", "fp32", "--json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)["rows"]
    assert [row["verdict"] for row in rows] == ["unchecked", "unchecked"]
    assert all("no golden case there" in row["error"] for row in rows)
    assert "2 of 2 comparisons could not be made" in done.stderr


def test_a_changed_record_and_a_changed_drafter_are_differences(tmp_path: Path) -> None:
    """The graph is its module in both; only the record can tell."""
    answers = shutil.copytree(CASES / "zlab-dflash", tmp_path / "answers")
    with np.load(answers / "expected.npz") as stored:
        arrays = dict(stored)
    arrays["r1.logits"][2, 7] += 0.01
    np.savez(answers / "expected.npz", **arrays)
    weights = shutil.copytree(CASES / "zlab-dflash", tmp_path / "weights")
    tensors = load_file(weights / "draft" / "model.safetensors")
    tensors["layers.0.self_attn.k_norm.weight"] *= 1.5
    save_file(tensors, weights / "draft" / "model.safetensors", metadata={"format": "pt"})
    done = matrix(answers, weights, "--precision", "fp32", "--precision", "bf16", "--json")
    assert done.exit_code == 3, done.output
    rows = json.loads(done.stdout)["rows"]
    assert all(row["parity"]["same"] for row in rows)
    spoilt = {(row["drafter"], row["precision"]): row["verdict"] for row in rows}
    # 0.01 is within what rounding to 16 bits may do to a logit; other weights are not
    assert spoilt == {
        ("answers", "fp32"): "different",
        ("answers", "bf16"): "same",
        ("weights", "fp32"): "different",
        ("weights", "bf16"): "different",
    }
    assert "3 of 4 comparisons differ: answers fp32, weights fp32, weights bf16" in done.stderr
    told = matrix_text(
        [MatrixRow(name="x", precision=Precision.FP16, error=RecordError("no case"))]
    )
    assert told[1].split() == ["x", "fp16", *["-"] * 6, "0.0", "unchecked"]
    assert told[-1] == "x fp16: no case"


def test_processes_share_the_drafters_and_hand_back_what_stopped_them(tmp_path: Path) -> None:
    sources = [Source(case=tmp_path / name) for name in ("a", "b", "c")]
    rows = list(check_matrix(sources, MatrixSettings(precisions=(Precision.FP32,)), jobs=2))
    assert [row.name for row in rows] == ["a", "b", "c"]
    assert all(isinstance(row.error, RecordError) and row.error.hint for row in rows)


def test_a_case_that_holds_hashes_takes_its_own_drafter_among_those_given(tmp_path: Path) -> None:
    """Three drafters of one config; two were recorded."""
    target = write_target(tmp_path / "target")
    toys = {name: ToyDrafter(kind=Kind.ZLAB_DFLASH, seed=len(name)) for name in ("a", "bb", "ccc")}
    drafts = {name: write_drafter(tmp_path / name, toy) for name, toy in toys.items()}
    options = RecordOptions(weights="hash", num_rounds=2)
    cases = [
        record_case(drafts[name], target, tmp_path / f"case-{name}", options)
        for name in ("bb", "a")
    ]
    beside = [word for draft in drafts.values() for word in ("--draft", draft)]
    fp32 = ("--target", target, "--precision", "fp32", "--json")
    done = matrix(*cases, *beside, *fp32)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["drafter"], row["verdict"]) for row in rows] == [
        *(("case-bb", "same"), ("case-a", "same"), ("ccc", "same")),
    ]
    assert [row["record"] is None for row in rows] == [False, False, True]

    for words, code, message in (
        (fp32, 1, "holds the hashes of its drafter, not the drafter"),
        (("--draft", drafts["ccc"], *fp32), 1, "made from another checkpoint"),
        (("--draft", drafts["bb"]), 1, "holds the hashes of the target's embed_tokens and lm_head"),
        (("--draft", ASSETS / "tiny-dflash"), 2, "--draft needs --target: got "),
    ):
        done = matrix(cases[0], *words)
        assert done.exit_code == code, done.output
        assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to check"),
        (["--draft", "somewhere"], "--draft needs --target"),
        (["somewhere", "--precision", "fp8"], "'fp8' is not one of"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], message: str) -> None:
    done = matrix(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
