"""Data files: the bytes and the hash of what is written and copied, on every way there is."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from draftrt.errors import CheckpointError
from draftrt.export.weights import data_file
from draftrt.export.weights.data_file import DataFile, mapped

CONTENT = bytes(index * 7 % 251 for index in range(5000))


def refuses(*_: object) -> int:
    raise OSError(errno.EXDEV, "not here")


def fails(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space left")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(CONTENT)
    return tmp_path / "source"


@pytest.mark.parametrize("window", [512, 4096, 1 << 20])
@pytest.mark.parametrize("way", ["kernel", "refused", "absent"])
def test_bytes_and_hash(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, window: int, way: str
) -> None:
    monkeypatch.setattr(data_file, "WINDOW_BYTES", window)
    monkeypatch.setattr(data_file, "BUFFER_BYTES", 100)
    if way == "refused":
        monkeypatch.setattr(os, "copy_file_range", refuses)
    if way == "absent":
        monkeypatch.delattr(os, "copy_file_range")
    steps: list[int] = []
    with DataFile(tmp_path / "data", steps.append) as file:
        file.write(memoryview(b"first"))
        file.fill(64)
        file.copy(source, 11, 4321)
        file.fill(8192)
        file.copy(source, 0, 3)
        entry = file.finish()
    wanted = (b"first".ljust(64, b"\0") + CONTENT[11:4332]).ljust(8192, b"\0") + CONTENT[:3]
    assert (tmp_path / "data").read_bytes() == wanted
    assert (entry.bytes, entry.sha256) == (len(wanted), hashlib.sha256(wanted).hexdigest())
    assert sum(steps) == len(wanted)


@pytest.mark.parametrize("way", ["kernel", "refused"])
def test_a_source_that_became_shorter_is_named(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "refused":
        monkeypatch.setattr(os, "copy_file_range", refuses)
    message = "source: has 5000 bytes now, expected 6000 or more"
    with DataFile(tmp_path / "data") as file, pytest.raises(CheckpointError, match=message):
        file.copy(source, 1000, 5000)
    with pytest.raises(CheckpointError, match=message):
        list(mapped(source, 1000, 5000))


def test_a_full_disk_is_no_reason_to_try_another_way(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", fails)
    with DataFile(tmp_path / "data") as file, pytest.raises(OSError, match="no space left"):
        file.copy(source, 0, 5000)
