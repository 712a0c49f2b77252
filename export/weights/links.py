"""Checkpoint files that a bundle points to: hard links under names of their own.

Of the ways to point at a file elsewhere this is the one that ONNX Runtime, Polygraphy and TensorRT
take: ONNX Runtime refuses symbolic links and paths that leave the model's folder, TensorRT's parser
the latter. `onnx.load` and `onnx.checker` refuse files of several names, so that here the ONNX
file is checked over stand-ins (`draftrt.export.check.compare.check_file`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from draftrt.bundle import LinkEntry
from draftrt.errors import ExportError
from draftrt.hashing import sample_sha256
from draftrt.manifest import LINKED


class Links:
    """The links of one bundle folder.

    Attributes:
        sources: name in the bundle to the checkpoint's file.
    """

    def __init__(self, folder: Path) -> None:
        self.sources: dict[str, Path] = {}
        self._folder = folder

    def add(self, file: Path, *, is_real: bool = True) -> str:
        """Point to a file and return its name in the bundle, relative and with forward slashes.

        Args:
            file: the checkpoint's.
            is_real: make the link; else only name it.

        Raises:
            ExportError: the file system cannot; the bundle has to lie on that of the checkpoint.
        """
        source = file.resolve()
        known = next((name for name, path in self.sources.items() if path == source), None)
        if known is not None:
            return known
        name = f"{LINKED}/{file.parent.name}-{file.name}"
        while name in self.sources:
            name = name.replace(f"{LINKED}/", f"{LINKED}/_", 1)
        self.sources[name] = source
        if not is_real:
            return name
        place = self._folder / name
        place.parent.mkdir(exist_ok=True)
        try:
            place.hardlink_to(source)
        except OSError as error:
            why = (
                "it lies on another file system"
                if error.errno == errno.EXDEV
                else (error.strerror or "")
            )
            raise ExportError(
                f"--weights link: {source} cannot be linked into the bundle: {why}",
                hint="write the bundle to the checkpoint's file system, or use --weights copy",
            ) from error
        return name

    def entries(self, hashes: Mapping[Path, str]) -> dict[str, LinkEntry]:
        """Return what the manifest says of each link.

        Args:
            hashes: those of the sources.
        """
        return {
            name: LinkEntry(
                source=str(source),
                bytes=source.stat().st_size,
                sample_sha256=sample_sha256(source),
                sha256=hashes[source],
            )
            for name, source in self.sources.items()
        }
