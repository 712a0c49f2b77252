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

from draftrt.bundle import hash_files, read_manifest, write_manifest
from draftrt.cli import group
from draftrt.errors import ParityError
from draftrt.export.pipeline import ExportOptions, export_bundle
from draftrt.spec import Precision
from draftrt.validate.engine import check_opens
from draftrt.validate.toys import Kind, ToyDrafter, write_drafter, write_target

pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("parity-bundle")]

Export = Callable[[ToyDrafter, Precision], Path]
DSPARK = ToyDrafter(
    kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96, sliding_window=6, markov_type="gated"
)
DFLASH2 = ToyDrafter(kind=Kind.ZLAB_DFLASH2)


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
    [(DSPARK, Precision.FP32), (DFLASH2, Precision.FP16)],
    ids=["dspark-fp32", "dflash2-fp16"],
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
    assert {one["capacity"] for one in fixed} == {64}
    last = fixed[-1]
    assert last["context_length"] + last["new_rows"] + toy.block_size == 64
    outputs = {one["output"]: one for one in last["outputs"]}
    assert {"draft_ids", "logits", "present_key_0", "present_value_1"} <= set(outputs)
    assert all(one["compared"] > 0 and one["same"] for one in outputs.values())
    assert bool(found["shares"]) is (precision is Precision.FP16)
    assert all(one["reason"] for one in found["limits"].values())


def test_the_table_names_every_output_once_and_polygraphy_says_nothing(export: Export) -> None:
    done = parity(export(DSPARK, Precision.FP32))
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "fp32, 16 rounds of draft.onnx and draft.flexible.onnx, context up to 60" in lines[0]
    names = [line.split()[0] for line in lines[2:]]
    assert names == ["draft_ids", "confidence", "logits", "cache"]
    assert all(line.endswith("same") for line in lines[2:])


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
    done = parity(spoilt)
    assert done.exit_code == 3, done.output
    assert "got nan, expected nan" in done.stdout


def test_a_bf16_graph_is_refused_by_name(export: Export, tmp_path: Path) -> None:
    copy = shutil.copytree(export(DSPARK, Precision.FP32), tmp_path / "bf16")
    manifest = read_manifest(copy)
    graph = replace(manifest.graphs["draft"], precision=Precision.BF16)
    write_manifest(copy, replace(manifest, graphs={"draft": graph}))
    done = parity(copy)
    assert done.exit_code == 1
    assert "ONNX Runtime has no bfloat16 kernels on the CPU" in done.stderr
    assert "fp32 or fp16" in done.stderr


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
