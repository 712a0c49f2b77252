"""The checkpoint's files of an export: they stay what they were when it began, or it is refused.

A file is read several times, by the copying, the graphs and their check. One that a download or a
training run replaces meanwhile would give a bundle of two models.
"""

from __future__ import annotations

from pathlib import Path

from draftrt.errors import CheckpointError


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
