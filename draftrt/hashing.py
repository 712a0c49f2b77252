"""Hashes of files: of every byte, or of samples that take the same time whatever the size.

Hashing takes about a second and a half a gigabyte. Samples are a file's size, its first 64 KB (in
safetensors the names, types, shapes and places of all tensors) and 64 blocks of 4 KB spread evenly
from the first byte to the last. A file that was replaced, cut or converted differs there; a change
of single weights elsewhere does not show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = 1 << 16
BLOCK_BYTES = 1 << 12
NUM_BLOCKS = 64
PIECE_BYTES = 1 << 22


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    """Return the hex SHA-256 of a file's content; ``on_bytes`` is told how many were read."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest()


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
