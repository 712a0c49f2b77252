"""What the samples of a file show of a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.files import BLOCK_BYTES, HEAD_BYTES, NUM_BLOCKS, sample_sha256

SIZE = 8 << 20
STEP = (SIZE - BLOCK_BYTES) // (NUM_BLOCKS - 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def change(path: Path, place: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(place)
        old = stream.read(1)
        stream.seek(place)
        stream.write(bytes([old[0] ^ 0xFF]))


@pytest.mark.parametrize(
    ("place", "is_seen"),
    [
        (0, True),
        (HEAD_BYTES - 1, True),
        (10 * STEP + 100, True),
        (SIZE - 1, True),
        (10 * STEP + BLOCK_BYTES + 1000, False),  # between two samples, as documented
    ],
)
def test_samples_see_a_change_in_them_and_none_between_them(
    place: int, is_seen: bool, file: Path
) -> None:
    before = sample_sha256(file)
    assert sample_sha256(file) == before
    change(file, place)
    assert (sample_sha256(file) != before) is is_seen


def test_a_file_shorter_than_a_sample_is_seen_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"weights")
    before = sample_sha256(path)
    change(path, 3)
    assert sample_sha256(path) != before
