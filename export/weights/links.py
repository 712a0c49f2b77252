"""Checkpoint files that a bundle points to, and that stay what they were during an export.

Checkpoint files that a bundle points to: hard links under names of their own.

Of the ways to point at a file elsewhere this is the one that ONNX Runtime, Polygraphy and TensorRT
take: ONNX Runtime refuses symbolic links and paths that leave the model's folder, TensorRT's parser
the latter. `onnx.load` and `onnx.checker` refuse files of several names, so that here the ONNX
file is checked over stand-ins (`draftrt.export.check.onnx_file.check_file`).

The checkpoint's files of an export: they stay what they were when it began, or it is refused.

A file is read several times, by the copying, the graphs and their check. One that a download or a
training run replaces meanwhile would give a bundle of two models.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from draftrt.errors import CheckpointError, ExportError
from draftrt.files import sample_sha256
from draftrt.manifest import LINKED, LinkEntry


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
            hashes: those of the sources that were hashed whole.
        """
        return {
            name: LinkEntry(
                source=str(source),
                bytes=source.stat().st_size,
                sample_sha256=sample_sha256(source),
                sha256=hashes.get(source, ""),
            )
            for name, source in self.sources.items()
        }


class Sources:
    """Files, and what told them apart from others when they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int, int]] = {}

    def add(self, file: Path) -> None:
        """Remember a file as it is now; one that is known stays as it was."""
        if file not in self._seen:
            self._seen[file] = _stamp(file)

    def check(self) -> None:
        """Compare the files with what they were.

        Raises:
            CheckpointError: names the first that is gone or was changed.
        """
        for file, before in self._seen.items():
            try:
                now = _stamp(file)
            except OSError as error:
                raise _changed(file, error.strerror or "gone") from error
            if now != before:
                raise _changed(file, f"{before[0]} bytes then, {now[0]} bytes now, written anew")


def _stamp(file: Path) -> tuple[int, int, int]:
    """Return size, time of the last writing, and which file it is."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _changed(file: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: was changed while it was exported: {how}",
        hint="let what writes it end, and export again",
    )
