"""`draftrt validate bisect` of quantised bundles: a fault in a weight's integers is named."""

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
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.quantization import parse_quantization
from draftrt.spec import Precision
from tests.parity.planted_graphs import reading, swap_inputs
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.extended, pytest.mark.xdist_group("bisect-quantised")]

TOY = ToyDrafter(
    kind=Kind.SPECULATORS_DSPARK,
    hidden_size=64,
    intermediate_size=64,
    num_layers=3,
    draft_vocab_size=96,
    sliding_window=6,
    markov_type="gated",
)
FORMS = {
    "int8": ("fp32", ["int8"]),
    "int4": ("fp16", ["int4"]),
    "fp8": ("bf16", ["fp8"]),
    "mixed": ("fp32", ["linear=int4", "head=int8", "embedding=int8"]),
}
UP = "layers.1.mlp.up_proj.weight"
Raw = Callable[[np.ndarray[Any, np.dtype[np.uint8]]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft checkpoint, and bundles of them in every form."""
    made = tmp_path_factory.mktemp("bisect-quantised")
    target = write_target(made / "target", ToyTarget(hidden_size=64))
    draft = write_drafter(made / "draft", TOY)
    for name, (precision, quantization) in FORMS.items():
        options = ExportOptions(
            max_context=64,
            target_graph=False,
            precision=Precision(precision),
            quantization=parse_quantization(quantization),
        )
        export_bundle(draft, target, made / name, options)
    return made


def bisect(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["validate", "bisect", *map(str, arguments)])


def damage(folder: Path, form: str, copy: Path, initialiser: str, change: Raw) -> Path:
    """Copy a bundle and change the bytes of one initialiser."""
    bundle = Path(shutil.copytree(folder / form, copy))
    model = onnx.load(str(bundle / "draft.onnx"), load_external_data=False)
    (one,) = [one for one in model.graph.initializer if one.name == initialiser]
    place = {item.key: item.value for item in one.external_data}
    data = np.memmap(
        bundle / place["location"], np.uint8, "r+", int(place["offset"]), int(place["length"])
    )
    change(data)
    data.flush()
    del data
    write_manifest(bundle, replace(read_manifest(bundle), files=hash_files(bundle)))
    return bundle


def some_codes(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    data[:64] ^= 0x80  # the sign, which makes no float8 a nan


def two_rows_exchanged(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    rows = data.reshape(64, -1)
    rows[[3, 9]] = rows[[9, 3]]


def one_scale(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Change the exponent of a number: two bytes little-endian, or the upper two of four."""
    data[3] ^= 4


@pytest.mark.parametrize("form", FORMS)
def test_a_quantised_bundle_is_its_module_and_its_checkpoint(folder: Path, form: str) -> None:
    for words in ((), ("--checkpoint", folder / "draft")):
        done = bisect(folder / form, *words)
        assert done.exit_code == 0, done.output
        assert "draft.onnx: same (" in done.stdout
        assert "draft.flexible.onnx: same (" in done.stdout


@pytest.mark.parametrize("change", [some_codes, two_rows_exchanged, one_scale])
@pytest.mark.parametrize("form", FORMS)
def test_a_fault_in_the_integers_of_a_weight_is_named(
    folder: Path, form: str, change: Raw, tmp_path: Path
) -> None:
    kind = "scales" if change is one_scale else "codes"
    spoilt = damage(folder, form, tmp_path / "spoilt", f"{UP}.{kind}", change)
    assert bisect(spoilt).exit_code == 0  # with itself the bundle agrees
    done = bisect(spoilt, "--checkpoint", folder / "draft", "--json")
    assert done.exit_code == 3, done.output
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["weights"]] == [UP]
    for graph in told["graphs"]:
        found = graph["divergence"]
        assert (found["layer"], found["step"], found["side"]) == (1, "mlp.up_proj", "out of")
        assert found["node"] == UP.removesuffix(".weight")
        assert found["error_before"] < found["allowed"] < found["error"]


def test_a_fault_in_the_integers_of_a_table_is_named(folder: Path, tmp_path: Path) -> None:
    def exchange(data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        rows = data.reshape(-1, 64)
        rows[:] = rows[::-1].copy()

    name = "embed_tokens.weight"
    spoilt = damage(folder, "mixed", tmp_path / "spoilt", f"{name}.codes", exchange)
    done = bisect(spoilt, "--checkpoint", folder / "draft")
    assert done.exit_code == 3, done.output
    assert f"weight {name}: " in done.stdout
    assert "leaves the reference at embed_tokens.output" in done.stdout


@pytest.mark.parametrize("form", FORMS)
def test_exchanged_integers_are_named_without_the_checkpoint(
    folder: Path, form: str, tmp_path: Path
) -> None:
    spoilt = Path(shutil.copytree(folder / form, tmp_path / "spoilt"))
    model = onnx.load(str(spoilt / "draft.onnx"), load_external_data=False)
    pair = [reading(model.graph, f"layers.2.self_attn.{name}_proj.weight.codes") for name in "kv"]
    for index in (0, 1):
        swap_inputs(pair[0], pair[1], index)
    onnx.save(model, str(spoilt / "draft.onnx"))
    write_manifest(spoilt, replace(read_manifest(spoilt), files=hash_files(spoilt)))
    done = bisect(spoilt)
    assert done.exit_code == 3, done.output
    assert "draft.onnx: leaves the reference at layers.2.self_attn.k_proj " in done.stdout
    assert "draft.flexible.onnx: same (" in done.stdout
