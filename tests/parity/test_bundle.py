"""`draftrt validate parity` on real bundles: same where they are, different where spoilt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.errors import ParityError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.manifest import PlanEntry
from draftrt.spec import Precision
from draftrt.validate.engine.engine import check_opens
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("parity-bundle")]

Export = Callable[[ToyDrafter, Precision], Path]
DSPARK = ToyDrafter(
    kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96, sliding_window=6, markov_type="gated"
)


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    folder = tmp_path_factory.mktemp("bundles")
    target = write_target(folder / "target")
    done: dict[str, Path] = {}

    def make(toy: ToyDrafter, precision: Precision) -> Path:
        name = f"{toy.kind.value}-{precision.value}"
        if name not in done:
            draft = write_drafter(folder / f"draft-{name}", toy)
            options = ExportOptions(
                precision=precision, max_context=64, extra_outputs=("logits",), target_graph=False
            )
            done[name] = export_bundle(draft, target, folder / name, options)
        return done[name]

    return make


def parity(bundle: Path, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["validate", "parity", str(bundle), *arguments])


@pytest.mark.parametrize(
    ("toy", "precision"),
    [(DSPARK, Precision.FP32), (DSPARK, Precision.BF16)],
    ids=["fp32", "bf16"],
)
def test_a_graph_does_what_its_module_does(
    export: Export, toy: ToyDrafter, precision: Precision
) -> None:
    done = parity(export(toy, precision), "--json", "--rounds", "6")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["same"], found["precision"]) == (True, precision.value)
    assert {one["graph"] for one in found["rounds"]} == {"draft.onnx", "draft.flexible.onnx"}
    fixed = [one for one in found["rounds"] if one["graph"] == "draft.onnx"]
    assert [one["context_length"] for one in fixed if not one["context_length"]] == [0, 0]
    last = fixed[-1]
    assert last["context_length"] + last["new_rows"] + toy.block_size == 64
    outputs = {one["output"]: one for one in last["outputs"]}
    assert {"draft_ids", "logits", "present_key_0", "present_value_1"} <= set(outputs)
    assert all(one["compared"] > 0 and one["same"] for one in outputs.values())
    assert all(one["reason"] for one in found["limits"].values())
    assert (found["windows"], found["backend"]) == ([6], "onnxruntime")
    is_twin = precision is Precision.BF16
    assert [note.partition(":")[0] for note in found["notes"]] == (
        ["bf16 as far as CPU kernels go"] if is_twin else []
    )


def test_choices_and_distributions_are_measured_though_the_graph_gives_only_ids(
    export: Export, tmp_path: Path
) -> None:
    """``hidden`` and ``base_logits`` are no outputs of this graph: they are made visible for it."""
    done = parity(export(DSPARK, Precision.FP32), "--json")
    measures = {(one["output"], one["measure"]): one for one in json.loads(done.stdout)["measures"]}
    assert {output for output, _ in measures} == {"hidden", "base_logits", "logits", "confidence"}
    for output in ("base_logits", "logits"):
        assert measures[output, "top-1 agreement"]["seen"] == 1
        assert 0 <= measures[output, "KL divergence, largest"]["seen"] < 1e-7
    # every round of draft.onnx, n = block rows that yield drafts; hidden rows only there
    assert measures["hidden", "cosine, smallest"]["rows"] == 8 * (DSPARK.block_size)
    assert measures["logits", "cosine, smallest"]["rows"] == 16 * (DSPARK.block_size)
    assert all(one["same"] for one in measures.values())


def test_the_table_names_every_output_once_and_polygraphy_says_nothing(export: Export) -> None:
    done = parity(export(DSPARK, Precision.FP32))
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "fp32, 16 rounds of draft.onnx and draft.flexible.onnx, context up to 60" in lines[0]
    assert "past the sliding window of 6" in lines[0]
    heads = [index for index, line in enumerate(lines) if line.endswith("verdict")]
    tables = [lines[heads[0] + 1 : heads[1]], lines[heads[1] + 1 :]]
    names = [line.split()[0] for line in tables[0]]
    assert names == ["draft_ids", "confidence", "logits", "hidden", "base_logits", "cache"]
    measured = [line.partition("  ")[0] for line in tables[1]]
    assert "base_logits: KL divergence, largest" in measured
    assert measured[-1] == "confidence: error, largest"
    assert all(line.endswith("same") for table in tables for line in table)


def spoil(bundle: Path, copy: Path, change: Callable[[Any], None], *files: str) -> Path:
    """Copy a bundle, change graphs of it and make its manifest agree."""
    shutil.copytree(bundle, copy)
    for file in files or ("draft.onnx",):
        model = onnx.load(str(copy / file), load_external_data=False)
        change(model)
        onnx.save(model, str(copy / file))
    write_manifest(copy, replace(read_manifest(copy), files=hash_files(copy)))
    return copy


def other_epsilon(model: Any) -> None:
    nodes = [node for node in model.graph.node if node.op_type == "RMSNormalization"]
    for attribute in nodes[-1].attribute:
        if attribute.name == "epsilon":
            attribute.f = 0.5


@pytest.mark.parametrize("file", ["draft.onnx", "draft.flexible.onnx"])
def test_a_changed_node_in_either_graph_is_a_difference(
    export: Export, tmp_path: Path, file: str
) -> None:
    spoilt = spoil(export(DSPARK, Precision.FP32), tmp_path / "spoilt", other_epsilon, file)
    done = parity(spoilt)
    assert done.exit_code == 3, done.output
    assert "different" in done.stdout
    details = [line for line in done.stdout.splitlines() if " (context " in line]
    assert details
    assert all(line.startswith(f"{file} round ") for line in details)
    assert "onnxruntime and pytorch differ" in done.stderr


def test_nan_in_both_is_no_agreement(export: Export, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(export(DSPARK, Precision.FP32), spoilt)
    model = onnx.load(str(spoilt / "draft.onnx"), load_external_data=False)
    (weight,) = [one for one in model.graph.initializer if one.name == "fc.weight"]
    place = {item.key: item.value for item in weight.external_data}
    data = np.memmap(spoilt / place["location"], np.float32, "r+", int(place["offset"]), (8,))
    data[3] = np.nan
    data.flush()
    del data
    write_manifest(spoilt, replace(read_manifest(spoilt), files=hash_files(spoilt)))
    done = parity(spoilt)
    assert done.exit_code == 3, done.output
    assert "got nan, expected nan" in done.stdout


def wider_window(model: Any) -> None:
    """The window of six rows becomes one of sixty, wherever it is counted."""
    found = [
        one
        for one in model.graph.initializer
        if one.data_type == onnx.TensorProto.INT64 and onnx.numpy_helper.to_array(one).tolist() == 6
    ]
    assert found
    for one in found:
        one.CopyFrom(onnx.numpy_helper.from_array(np.array(60, np.int64), one.name))


def test_a_wrong_sliding_window_is_a_difference(export: Export, tmp_path: Path) -> None:
    done = parity(spoil(export(DSPARK, Precision.FP32), tmp_path / "wide", wider_window), "--json")
    assert done.exit_code == 3, done.output
    rounds = [one for one in json.loads(done.stdout)["rounds"] if one["graph"] == "draft.onnx"]
    is_wrong = [not all(output["same"] for output in one["outputs"]) for one in rounds]
    assert is_wrong == [one["context_length"] + one["new_rows"] > 6 for one in rounds]
    assert True in is_wrong
    assert False in is_wrong


@pytest.mark.parametrize(
    ("backend", "with_plan", "message", "hint"),
    [
        ("tensorrt-rtx", False, "tensorrt-rtx plans of graph 'draft': there is none", "build"),
        ("tensorrt-rtx", True, "no usable NVIDIA GPU", "onnxruntime backend"),
    ],
)
@pytest.mark.needs("tensorrt_rtx", "cuda", "no GPU")
def test_a_plan_is_not_compared_where_it_cannot_run(
    export: Export, tmp_path: Path, backend: str, with_plan: bool, message: str, hint: str
) -> None:
    copy = shutil.copytree(export(DSPARK, Precision.FP32), tmp_path / "planned")
    if with_plan:
        manifest = read_manifest(copy)
        (copy / "plans").mkdir()
        (copy / "plans" / "draft.plan").write_bytes(b"plan")
        (copy / "plans" / "draft.log").write_text("built")
        plan = PlanEntry(
            file="plans/draft.plan",
            log="plans/draft.log",
            graph="draft",
            graph_sha256=manifest.files["draft.onnx"].sha256,
            backend=backend,
            backend_version="1",
            sms=(89,),
            options={},
            build_seconds=0.0,
            peak_rss_bytes=0,
            size_bytes=4,
        )
        write_manifest(copy, replace(manifest, plans={plan.file: plan}))
    done = parity(copy, "--backend", backend)
    assert done.exit_code == 1, done.output
    assert message in done.stderr
    assert hint in done.stderr


def test_a_draft_outside_the_targets_vocabulary_is_a_difference(
    export: Export, tmp_path: Path
) -> None:
    bundle = export(DSPARK, Precision.FP32)
    assert check_opens(bundle) == DSPARK.block_size
    copy = shutil.copytree(bundle, tmp_path / "narrow")
    manifest = read_manifest(copy)
    assert manifest.drafter is not None
    narrow = replace(manifest.drafter, target_vocab_size=1)
    write_manifest(copy, replace(manifest, drafter=narrow))
    with pytest.raises(ParityError, match=r"got draft ids \[.*\], expected 4 from 0 to 0"):
        check_opens(copy)


def test_a_bundle_whose_files_were_cut_is_not_checked(export: Export, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(export(DSPARK, Precision.FP32), cut)
    (cut / "draft.onnx").write_bytes(b"")
    done = parity(cut)
    assert done.exit_code == 1
    assert "draft.onnx has 0 bytes" in done.stderr
