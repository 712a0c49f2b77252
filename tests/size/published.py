"""Random checkpoints at the dimensions of published systems, to try exports at real size.

    python -m tests.size.published qwen3-4b-dflash --out build/published

writes ``draft/`` and ``target/`` folders (the target: config, tokenizer and the two tables a
drafter borrows). Configs are written from the publishers' descriptions; weights are random, so a
system can be exported, checked and timed, and says nothing about acceptance.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from draftrt.cli_options import OutputFolder
from draftrt.failure_cli import Ending
from tests.size.systems import SYSTEMS
from tests.toys.tokenizer import write_tokenizer

BLOCK = 1 << 24  # random 16-bit values made once and written again and again


def write_system(name: str, folder: Path, *, whole_target: bool = False) -> tuple[Path, Path]:
    """Write a system's drafter and target folders and return both.

    Args:
        name: one of `SYSTEMS`.
        folder: where to write.
        whole_target: write the target's layers too, of the drafter's own sizes.
    """
    system = SYSTEMS[name]()
    draft, target = folder / name / "draft", folder / name / "target"
    configs = {draft: system.draft, target: system.target}
    if whole_target:
        configs[target] = {**system.draft, **system.target, "head_dim": system.draft["head_dim"]}
        for key in ("dflash_config", "block_size", "num_target_layers"):
            configs[target].pop(key, None)
    for path, config in configs.items():
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    body = system.draft.get("transformer_layer_config", system.draft)
    hidden = body["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 5 * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **{f"layers.{i}.{key}": shape for i in range(5) for key, shape in system.layer.items()},
        **system.extra,
    }
    integers = {}
    if system.d2t is not None:
        rows = system.target["vocab_size"]
        kept = np.sort(np.random.default_rng(1).choice(rows, system.d2t, replace=False))
        integers["d2t"] = (kept - np.arange(system.d2t)).astype(np.int64)
    _write_safetensors(draft / "model.safetensors", shapes, integers)
    table: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (system.table_rows, hidden)}
    if whole_target:
        table["model.norm.weight"] = (hidden,)
        layer = system.target_layer or system.layer
        for index in range(system.target["num_hidden_layers"]):
            table |= {f"model.layers.{index}.{key}": at for key, at in layer.items()}
    _write_safetensors(target / "model.safetensors", table, {})
    write_tokenizer(target)
    return draft, target


def _write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], integers: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Write random bfloat16 tensors, scaled like an initialised model, streamed block by block."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in integers.items():
        header[name] = {
            "dtype": "I64",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    normal = np.random.default_rng(0).standard_normal(BLOCK, dtype=np.float32)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        for array in integers.values():
            stream.write(array.tobytes())
        for index, (name, shape) in enumerate(shapes.items()):
            _write_random(
                stream, normal, shape, np.random.default_rng(index), is_norm="norm" in name
            )


def _write_random(
    stream: Any, normal: Any, shape: tuple[int, ...], rng: Any, *, is_norm: bool
) -> None:
    scale = 1.0 if len(shape) == 1 else 1 / math.sqrt(shape[-1])
    left = math.prod(shape)
    while left > 0:
        start = int(rng.integers(0, BLOCK // 2))
        piece = normal[start : start + min(left, BLOCK // 2)]
        values = 1 + 0.2 * piece if is_norm else scale * piece
        stream.write((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes())
        left -= len(piece)


@click.command(cls=Ending)
@click.argument("names", nargs=-1, required=True, type=click.Choice(sorted(SYSTEMS)))
@click.option("--out", required=True, type=OutputFolder(), help="Folder to write into.")
@click.option("--whole-target", is_flag=True, help="Write the target's layers too.")
def main(names: tuple[str, ...], out: Path, whole_target: bool) -> None:
    """Write random checkpoints of the systems NAMES."""
    for name in names:
        draft, target = write_system(name, out, whole_target=whole_target)
        click.echo(f"{name}: {draft} {target}")


if __name__ == "__main__":
    main()
