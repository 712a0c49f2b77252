"""A checkpoint that changes while it is exported is refused, whatever came of the change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from draftrt.errors import CheckpointError, ExportError
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef
from draftrt.export.options import WeightMode
from draftrt.export.weights.storage import weight_files

SHAPE = (64, 32)
BYTES = 64 * 32 * 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(os.urandom(BYTES))
    return tmp_path / "model.safetensors"


def export(
    source: Path,
    folder: Path,
    mode: WeightMode,
    meanwhile: Callable[[Path], object] = lambda path: None,
    failure: BaseException | None = None,
) -> None:
    """Copy or link a weight; then something happens to its file, and the rest fails."""
    folder.mkdir()
    ref = TensorRef("w", "float32", SHAPE, source, 0)
    with weight_files(folder, mode) as files:
        files.place("graph.data", {"w": GraphTensor("w", SHAPE, "float32", ref)}, {})
        files.entries()
        meanwhile(source)
        if failure is not None:
            raise failure


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, BYTES // 2)


def overwrite(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"other")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))


def replace(path: Path) -> None:
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(BYTES))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (remove, "No such file"),
        (cut, f"{BYTES} bytes then, {BYTES // 2} bytes now"),
        (overwrite, "written anew"),
        (replace, "written anew"),
    ],
)
@pytest.mark.parametrize("failure", [None, OSError("any"), ValueError("any"), ExportError("any")])
@pytest.mark.parametrize("mode", WeightMode)
def test_a_source_that_changes_meanwhile_is_refused(
    mode: WeightMode,
    failure: Exception | None,
    change: Callable[[Path], None],
    told: str,
    source: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match=f"changed while it was exported: .*{told}") as got:
        export(source, tmp_path / "bundle", mode, change, failure)
    assert str(source) in got.value.message
    assert "export again" in got.value.hint
    assert got.value.exit_code == 1


@pytest.mark.parametrize("failure", [OSError("any"), ExportError("any"), KeyboardInterrupt()])
@pytest.mark.parametrize("mode", WeightMode)
def test_a_source_that_is_only_read_or_linked_counts_as_it_was(
    mode: WeightMode, failure: BaseException, source: Path, tmp_path: Path
) -> None:
    export(source, tmp_path / "bundle", mode)
    with pytest.raises(type(failure)) as got:
        export(source, tmp_path / "other", mode, failure=failure)
    assert got.value is failure
