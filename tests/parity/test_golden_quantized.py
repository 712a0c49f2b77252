"""`draftrt validate golden` on quantised checkpoints: right ones, and ones with a planted fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group


def golden(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(group, ["validate", "golden", *map(str, arguments)])


@pytest.fixture
def case(root: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return what copies a case."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(root / "tests" / "golden-quantized" / name, tmp_path / name))

    return copy


def test_the_graph_of_a_quantised_target_answers_as_recorded(
    case: Callable[[str], Path],
) -> None:
    result = golden(case("awq-g128"), "--as-run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["cases"][0]["backends"]
    assert set(found) == {"onnxruntime", "pytorch", "as run"}
    compared = found["onnxruntime"]
    assert {name for name in compared if name.startswith("p0.")} == {
        "p0.logits",
        "p0.hidden",
        "p0.greedy",
    }
    assert compared["p2.greedy"]["equal"] == 64
    weights = [one for name, one in compared.items() if name.startswith("w.")]
    assert len(weights) == 6
    assert all(one["worst"] == 0 for one in weights)


def test_the_weights_of_a_quantised_drafter_are_compared_too(case: Callable[[str], Path]) -> None:
    result = golden(case("zlab-dflash-ct-w4a16"), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["cases"][0]["backends"]["onnxruntime"]
    assert {"r0.tokens", "w.layers.0.mlp.down_proj", "c.layers.1.mlp.up_proj"} <= set(found)


def change(arrays: dict[str, np.ndarray[Any, Any]], name: str) -> None:
    """Plant a small fault in one array."""
    array = arrays[name].copy()
    place = (0,) * array.ndim
    array[place] = array[place] + (1 if array.dtype.kind == "i" else array.dtype.type(1e-3))
    arrays[name] = array


def test_every_kind_of_difference_is_told(case: Callable[[str], Path]) -> None:
    folder = case("awq-g128")
    with np.load(folder / "expected.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    names = {"w.model.layers.0.mlp.down_proj", "c.model.layers.1.mlp.down_proj"}
    names |= {"p0.hidden", "p1.logits", "p2.greedy"}
    for name in names:
        change(arrays, name)
    np.savez(folder / "expected.npz", **arrays)
    result = golden(folder, "--backend", "pytorch", "--json")
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)["cases"][0]["backends"]["pytorch"]
    assert {name for name, one in found.items() if not one["same"]} == names


def test_tensors_without_a_model_are_compared(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    from tests.toys.quantized import fp4

    parts, weight = fp4(np.random.default_rng(1), 12, 64, layout="mxfp4")
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        f"{name}_blocks": parts["weight_packed"][1].reshape(3, 4, 2, 16),
        f"{name}_scales": parts["weight_scale"][1].reshape(3, 4, 2),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    np.savez(tmp_path / "expected.npz", **{name: weight.reshape(3, 4, 64).transpose(0, 2, 1)})
    assert golden(tmp_path).exit_code == 0
    np.savez(tmp_path / "expected.npz", **{name: weight.reshape(3, 4, 64).transpose(0, 2, 1) + 1})
    assert golden(tmp_path).exit_code == 3
