"""ONNX files over linked data, for tools that refuse files of several names."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftrt.manifest import LINKED


@contextmanager
def checkable(path: Path) -> Iterator[Path]:
    """Give an ONNX file for the ONNX checker: itself, or over stand-ins for linked data.

    The checker looks at the names, types, shapes and sizes of external data and never at its
    contents; it refuses hard links. A stand-in is an empty file of the same size.
    """
    folder = path.parent
    if not (folder / LINKED).is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".check-") as name:
        scratch = Path(name)
        shutil.copyfile(path, scratch / path.name)
        (scratch / LINKED).mkdir()
        for file in (*folder.glob("*.data"), *(folder / LINKED).iterdir()):
            place = scratch / file.relative_to(folder)
            with place.open("wb") as stream:
                stream.truncate(file.stat().st_size)
        yield scratch / path.name
