"""Files that are on the disk, not only in the system's memory, before something relies on them.

A rename may reach the disk before the content of what was renamed does: after a power cut a bundle
would be there, whole by its name and empty inside.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, or a share of it, is full


def sync(stream: IO[bytes]) -> None:
    """Wait until the disk has what was written to a file."""
    stream.flush()
    os.fsync(stream.fileno())


def start_writeback(stream: IO[bytes], count: int) -> None:
    """Let the disk begin with the last ``count`` bytes of a file, without waiting for it.

    On Linux, giving up pages that are not written yet starts writing them and keeps them;
    elsewhere nothing happens.
    """
    if hasattr(os, "posix_fadvise"):
        end = stream.tell()
        os.posix_fadvise(stream.fileno(), end - count, count, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder; Windows has no way to ask for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path, *, but: Collection[str] = ()) -> None:
    """Wait until the disk has everything below a folder.

    Args:
        folder: the folder.
        but: names of folders in it whose files somebody else wrote.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        elif path.relative_to(folder).parts[0] not in but:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            sync(stream)
        Path(name).chmod(0o644)
        Path(name).replace(path)
        sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
