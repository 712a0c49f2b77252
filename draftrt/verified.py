"""What of a bundle was found as written on this machine: a record outside the bundle.

A file whose size, place on the disk and times are those of the record is not hashed again: a small
one is read whole, of a large one samples are compared. One process replaces the record of another
in one step, and a file that a record lacks is hashed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftrt.errors import BundleError
from draftrt.files import write_atomically
from draftrt.json_file import read_object

_told: set[Path] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What the file system says of a file, links followed: changed by whoever writes to it."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A file as it was when all of it was hashed.

    Attributes:
        stamp: its stamp then.
        sha256: its hash.
        sample_sha256: of its size and samples.
    """

    stamp: Stamp
    sha256: str
    sample_sha256: str


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of a file."""
    found = path.stat()
    return Stamp(
        device=found.st_dev,
        inode=found.st_ino,
        bytes=found.st_size,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
    )


def read_known(bundle: Path) -> dict[str, Known]:
    """Return what is remembered of a bundle's files; nothing where no record can be read."""
    try:
        content = read_object(_record(bundle), BundleError)
        return {
            name: Known(
                stamp=Stamp(**one["stamp"]),
                sha256=str(one["sha256"]),
                sample_sha256=str(one["sample_sha256"]),
            )
            for name, one in content["files"].items()
        }
    except (BundleError, OSError, RuntimeError, KeyError, TypeError, AttributeError):
        return {}


def remember(bundle: Path, files: dict[str, Known]) -> None:
    """Keep what is known of a bundle's files; where that cannot be, say so once."""
    content: dict[str, Any] = {
        "bundle": str(bundle.resolve()),
        "files": {name: asdict(known) for name, known in files.items()},
    }
    try:
        record = _record(bundle)
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(record, json.dumps(content).encode())
    except (OSError, RuntimeError) as error:
        _tell_once(error)


def cache_folder() -> Path:
    """Return the folder of draftrt in the user's cache.

    Raises:
        RuntimeError: the user has no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "draftrt"


def _record(bundle: Path) -> Path:
    name = hashlib.sha256(os.fsencode(bundle.resolve())).hexdigest()[:32]
    return cache_folder() / "verified" / f"{name}.json"


def _tell_once(error: OSError | RuntimeError) -> None:
    try:
        folder = cache_folder()
    except RuntimeError:
        folder = Path("~/.cache/draftrt")
    if folder in _told:
        return
    _told.add(folder)
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    sys.stderr.write(
        f"note: {folder} cannot be written ({why}): all files of a bundle are hashed each time it "
        "is opened; set XDG_CACHE_HOME to a folder that can be, or pass --no-verify\n"
    )
