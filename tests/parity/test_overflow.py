"""What float16 does not hold is told as such: the tensor, how large it is, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import draftrt
from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.errors import BackendError, ExportError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.quantization import parse_quantization
from draftrt.spec import Precision
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("overflow")]
FP16 = ExportOptions(precision=Precision.FP16, max_context=64)
K_PROJ = "layers.1.self_attn.k_proj"


@pytest.fixture(params=["whole", "by samples"])
def extent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether graphs are checked whole, or as large ones are."""
    if request.param == "by samples":
        monkeypatch.setattr("draftrt.export.check.extent.FULL_CHECK_BYTES", 0)
    return str(request.param)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    return draft, write_target(tmp_path / "target", ToyTarget())


def changed(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change one weight of a checkpoint."""
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    found = next(one for one in weights if one.endswith(name))
    weights[found] = np.ascontiguousarray(change(weights[found]), np.float32)
    save_file(weights, path, metadata={"format": "pt"})


def refused(pair: tuple[Path, Path], tmp_path: Path, options: ExportOptions = FP16) -> ExportError:
    with pytest.raises(ExportError) as caught:
        export_bundle(*pair, tmp_path / "bundle", options)
    assert not (tmp_path / "bundle").exists()
    return caught.value


@pytest.mark.parametrize("side", [0, 1], ids=["drafter", "target"])
def test_activations_beyond_float16_are_named(
    pair: tuple[Path, Path], tmp_path: Path, extent: str, side: int
) -> None:
    name = f"layers.{(1, 5)[side]}.self_attn.k_proj"  # a last layer is among the samples
    changed(pair[side], f"{name}.weight", lambda weight: weight * 1e5)
    error = refused(pair, tmp_path)
    assert error.message.startswith("float16 overflows in ")
    assert f"{name} · product: got " in error.message
    assert "largest 65504" in error.message
    got = float(error.message.split("got ")[1].split(",")[0])
    assert 65504 < got < 1e8
    assert error.hint.startswith("use --precision bf16 or fp32")
    wide = replace(FP16, precision=Precision.FP32)
    assert export_bundle(*pair, tmp_path / "wide", wide).is_dir()


@pytest.mark.parametrize("side", [0, 1], ids=["drafter", "target"])
@pytest.mark.parametrize(
    ("precision", "value", "told"),
    [
        (Precision.FP16, 70000.0, "float16 overflows in {}: got 70000, largest 65504 (a weight)"),
        (Precision.BF16, 3.4e38, "bfloat16 overflows in {}: got 3.4e+38, largest 3.38953e+38"),
    ],
)
def test_a_weight_that_16_bits_do_not_hold_is_named(
    pair: tuple[Path, Path],
    tmp_path: Path,
    side: int,
    precision: Precision,
    value: float,
    told: str,
) -> None:
    def one_large(weight: Any) -> Any:
        weight[-1, -1] = value
        return weight

    changed(pair[side], f"{K_PROJ}.weight", one_large)
    error = refused(pair, tmp_path, replace(FP16, precision=precision))
    prefix = "model." if side else ""
    assert told.format(f"{prefix}{K_PROJ}.weight") in error.message
    assert error.hint.startswith("use --precision " + ("fp32", "bf16")[value < 1e5])


def test_quantised_weights_overflow_by_name_too(pair: tuple[Path, Path], tmp_path: Path) -> None:
    changed(pair[0], f"{K_PROJ}.weight", lambda weight: weight * 1e6)
    error = refused(pair, tmp_path, replace(FP16, quantization=parse_quantization(["int8"])))
    assert "float16 overflows in" in error.message
    assert K_PROJ in error.message


def spoilt(path: Path, graph: str, name: str) -> Path:
    """Make one number of a stored float16 weight infinite, as a flipped bit does."""
    model = onnx.load(str(path / f"{graph}.onnx"), load_external_data=False)
    (weight,) = [one for one in model.graph.initializer if one.name == name]
    place = {item.key: item.value for item in weight.external_data}
    size = int(np.prod(weight.dims))
    data = np.memmap(path / place["location"], np.float16, "r+", int(place["offset"]), (size,))
    data[7] = np.inf
    data.flush()
    del data
    write_manifest(path, replace(read_manifest(path), files=hash_files(path)))
    return path


def test_parity_names_what_overflows_in_a_bundle(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = spoilt(export_bundle(*pair, tmp_path / "b", FP16), "draft", f"{K_PROJ}.weight")
    done = CliRunner().invoke(group, ["validate", "parity", str(path)])
    assert done.exit_code == 1, done.output
    assert f"float16 overflows in {K_PROJ} · weight" in done.stderr
    done = CliRunner().invoke(group, ["validate", "ranges", str(path)])
    assert done.exit_code == 3, done.output
    assert "float16 overflows" in done.stderr


def test_a_target_whose_answers_are_no_numbers_ends_the_run(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    path = spoilt(export_bundle(*pair, tmp_path / "b", FP16), "target", f"model.{K_PROJ}.weight")
    done = CliRunner().invoke(group, ["validate", "parity", str(path), "--graph", "target"])
    assert done.exit_code == 3, done.output
    assert f"float16 overflows in model.{K_PROJ} · weight" in done.stdout
    assert Bundle.open(path).graph("target").precision is Precision.FP16
    with draftrt.load(path) as loaded, pytest.raises(BackendError) as caught:
        loaded.generate("A song")
    assert "not finite at token 0: float16 overflows (largest 65504)" in caught.value.message
