"""The small target with its linears quantised in a layout: a checkpoint folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tests.toys.quantized import Array, Made
from tests.toys.safetensors_file import write_tensors

Make = Callable[[np.random.Generator, int, int], Made]


def quantised_target(
    source: Path,
    folder: Path,
    quantization: Mapping[str, Any],
    make: Mapping[str, Make],
) -> dict[str, Array]:
    """Write a target whose linears are quantised; return what each of them stands for.

    Args:
        source: the target that it is made from.
        folder: to write.
        quantization: its config's ``quantization_config``.
        make: part of a module's name to what makes its tensors from outputs and inputs.
    """
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = dict(quantization)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(11)
    tensors: dict[str, tuple[str, Array]] = {}
    weights = {}
    with safe_open(source / "model.safetensors", "numpy") as stored:
        for name in stored.keys():  # noqa: SIM118
            module = name.removesuffix(".weight")
            chosen = next((one for part, one in make.items() if part in module), None)
            array = stored.get_tensor(name)
            if chosen is None or not module.endswith("_proj"):
                tensors[name] = ("F32", array)
                continue
            parts, weights[module] = chosen(rng, *array.shape)
            tensors |= {f"{module}.{last}": one for last, one in parts.items()}
    write_tensors(folder / "model.safetensors", tensors)
    return weights
