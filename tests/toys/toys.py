"""Tiny random checkpoints in the publishers' own formats, written as real folders, for tests.

    from tests.toys.toys import Kind, ToyDrafter, ToyTarget, write_drafter, write_target

    target = write_target(tmp_path / "target")  # loads in transformers; has a tokenizer
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.DEEPSPEC_DSPARK))
    draft = write_drafter(
        tmp_path / "other",
        ToyDrafter(
            kind=Kind.SPECULATORS_DSPARK,
            draft_vocab_size=96,  # below the target's: writes lm_head, d2t and t2d
            markov_type="gated",
            sliding_window=6,  # the first layer slides
            overrides={"speculators_config": REMOVED, "block_size": 5},
            omit=("norm.weight",),
        ),
    )

Sizes are such that few axes are equal by accident, and the same description always gives the same
bytes. Norm weights are random: an exporter merges equal constants, so weights that are all ones
would hide a wrong name. What a checkpoint means is not known here: the readers under test find out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.toys.formats import Arrays, drafter_arrays, drafter_config, target_arrays, target_config
from tests.toys.models import REMOVED, Kind, ToyDrafter, ToyTarget
from tests.toys.tokenizer import NUM_TOKENS, write_tokenizer

__all__ = ["REMOVED", "Kind", "ToyDrafter", "ToyTarget", "write_drafter", "write_target"]


def write_target(folder: Path, toy: ToyTarget | None = None) -> Path:
    """Write a target with tokenizer and chat template; return its folder.

    Raises:
        ValueError: the vocabulary is smaller than the tokenizer's.
    """
    toy = toy or ToyTarget()
    if toy.vocab_size < NUM_TOKENS:
        raise ValueError(f"vocab_size must be at least {NUM_TOKENS}, got {toy.vocab_size}")
    _write(folder, target_config(toy), target_arrays(toy), toy.dtype)
    write_tokenizer(folder)
    return folder


def write_drafter(folder: Path, toy: ToyDrafter) -> Path:
    """Write a drafter checkpoint (config.json, safetensors); return its folder."""
    config = drafter_config(toy)
    for path, value in toy.overrides.items():
        _override(config, path.split("."), value)
    arrays = {**drafter_arrays(toy), **toy.extra}
    for name in toy.omit:
        del arrays[name]
    _write(folder, config, arrays, toy.dtype, toy.num_shards)
    return folder


def _override(config: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        config = config.setdefault(part, {})
    if value is REMOVED:
        config.pop(path[-1], None)
    else:
        config[path[-1]] = value


def _write(
    folder: Path, config: dict[str, Any], arrays: Arrays, dtype: str, num_shards: int = 1
) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        tensors[name] = tensor.to(getattr(torch, dtype)) if array.dtype == np.float32 else tensor
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for number in range(num_shards):
        file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        placed |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
