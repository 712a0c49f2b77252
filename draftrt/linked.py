"""Files that a bundle points to instead of holding them: what is remembered, and what is noticed.

Hashing a checkpoint takes about a second and a half a gigabyte, longer than pointing to it. So what
identifies a linked file by default is a hash of samples: its size, its first 64 KB (in safetensors
the names, types, shapes and places of all tensors) and 64 blocks of 4 KB spread evenly from
the first byte to the last. A file that was replaced, cut or converted differs there; a change of
single weights elsewhere does not show. A hash of the whole file is remembered where asked for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from draftrt.manifest import LinkEntry

FOLDER = "linked"
HEAD_BYTES = 1 << 16
BLOCK_BYTES = 1 << 12
NUM_BLOCKS = 64


def sample_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's size and samples; see the top of this file."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(HEAD_BYTES))
        for index in range(NUM_BLOCKS):
            stream.seek(max(0, size - BLOCK_BYTES) * index // (NUM_BLOCKS - 1))
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()


def link_problem(path: Path, entry: LinkEntry) -> str:
    """Return what is wrong with a linked file of a bundle; empty when nothing is seen."""
    name = f"{FOLDER}/{path.name} (linked from {entry.source})"
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{name} has {size} bytes, expected {entry.bytes}"
    if sample_sha256(path) != entry.sample_sha256:
        return f"{name} holds other weights than when the bundle was written"
    return ""
