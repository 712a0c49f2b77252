"""Which weights a model folder holds, tensor by tensor, told from samples of its safetensors files.

A few megabytes are read, whatever the size of the model. Another revision or a fine-tune of a model
has other bytes nearly everywhere in the tensors that were trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

BLOCK_BYTES, NUM_BLOCKS = 1 << 10, 4
MOST_HEADER = 100 << 20
DIGITS = 16


def sample_tensors(folder: Path) -> dict[str, str]:
    """Return a short hash of every tensor's type, shape and samples, by name.

    Files that cannot be read as safetensors are left out; who loads the model names them.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as stream:
                found |= dict(_sampled(stream))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def other_tensors(folder: Path, expected: dict[str, str]) -> tuple[str, ...]:
    """Return the tensors of a folder that are not those of the samples, or are not there.

    Args:
        folder: a model's.
        expected: what `sample_tensors` returned; empty where it is not known.
    """
    if not expected:
        return ()
    found = sample_tensors(folder)
    return tuple(name for name, sample in expected.items() if found.get(name) != sample)


def _sampled(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    length = int.from_bytes(stream.read(8), "little")
    if length > MOST_HEADER:
        raise ValueError("no header of safetensors")
    header: dict[str, Any] = json.loads(stream.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = (int(one) for one in entry["data_offsets"])
        digest = hashlib.sha256(f"{entry['dtype']} {entry['shape']}".encode())
        for index in range(NUM_BLOCKS):
            place = first + max(0, end - first - BLOCK_BYTES) * index // (NUM_BLOCKS - 1)
            stream.seek(8 + length + place)
            digest.update(stream.read(min(BLOCK_BYTES, end - place)))
        yield name, digest.hexdigest()[:DIGITS]
