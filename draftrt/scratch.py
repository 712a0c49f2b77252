"""Folders that a command works in beside the place of its result, and what killed commands left.

A folder is locked while its command lives: the lock ends with the process, however that ends. So
the next command tells the leftovers of a killed one from what another one is writing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL, REPLACED = "partial", "replaced"
LEFTOVER = re.compile(r"\..+\.(partial|replaced)-[a-z0-9_]{8}")


@contextmanager
def scratch_folder(final: Path, kind: str = PARTIAL) -> Iterator[Path]:
    """Give a locked folder ``.NAME.KIND-XXXXXXXX`` beside a final place.

    Leftovers of killed commands beside it are removed first. What is in the folder at the end, if
    it was not renamed, is removed.

    Raises:
        OSError: it cannot be made.
    """
    _clear(final.parent)
    scratch, lock = _locked_folder(final, kind)
    try:
        yield scratch
    finally:
        # The lock lasts until the folder is gone, whatever ends the command.
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_folder(final: Path, kind: str) -> tuple[Path, int | None]:
    while True:
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.{kind}-"))
        lock = _lock(scratch, is_waiting=True)
        if lock is None or scratch.is_dir():
            return scratch, lock
        os.close(lock)  # taken for a leftover before it was locked


def _clear(folder: Path) -> None:
    """Remove folders that killed commands left; those of living ones are locked."""
    if sys.platform == "win32":
        return  # no locks on folders there
    for path in sorted(folder.iterdir()):
        if not LEFTOVER.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        kept = path / path.name[1:].rpartition(f".{REPLACED}-")[0]
        if f".{REPLACED}-" in path.name and not (folder / kept.name).exists():
            continue  # the only copy of a bundle whose replacement was cut short
        try:
            lock = _lock(path, is_waiting=False)
        except OSError:
            continue
        try:
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                sys.stderr.write(f"note: removed {path}, which a killed command left\n")
        finally:
            if lock is not None:
                os.close(lock)


def _lock(folder: Path, *, is_waiting: bool) -> int | None:
    """Lock a folder and return the descriptor that holds the lock; None where there are no locks.

    Raises:
        OSError: somebody else has it and there is no waiting, or the folder is gone.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        if not is_waiting:
            raise
        return os.open(folder.parent, os.O_RDONLY)  # gone already: the caller makes another
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
