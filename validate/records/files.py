"""Reading any record: its JSON, its version, the files it belongs to; the error of a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.codec import parse, read_bytes
from draftrt.errors import DraftrtError
from draftrt.files import sha256_of


class RecordError(DraftrtError):
    """A record is missing, cannot be read, or is ill-formed."""


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        RecordError: it is missing or no JSON.
    """
    content = read_bytes(path, RecordError)
    try:
        return parse(content)
    except ValueError as error:
        raise RecordError(f"{path}: cannot be read as JSON: {error!s:.200}") from error


def check_version(path: Path, version: Any, newest: int) -> None:
    """Refuse a record of a version that is not known.

    Args:
        path: its file.
        version: what it states.
        newest: the last version that is known; 1 is the first.

    Raises:
        RecordError: the version is another one.
    """
    if isinstance(version, bool) or version not in range(1, newest + 1):
        expected = " or ".join(str(known) for known in range(1, newest + 1))
        raise RecordError(
            f"{path}: got record version {version!r}, expected {expected}",
            hint="a newer draftrt wrote it; update, or record it again",
        )


def check_hashes(folder: Path, draft: Path, checkpoint: Mapping[str, str]) -> None:
    """Check that a checkpoint is the one a record was made from.

    Args:
        folder: the record.
        draft: folder of the checkpoint.
        checkpoint: file name to SHA-256, as recorded.

    Raises:
        RecordError: a file is missing or has another content; lists every one.
    """
    problems = []
    for name, recorded in checkpoint.items():
        path = draft / name
        found = sha256_of(path) if path.is_file() else "no such file"
        if found != recorded:
            problems.append(f"{path}: got SHA-256 {found}, expected {recorded}")
    if problems:
        raise RecordError(
            f"{folder}: made from another checkpoint: " + "; ".join(problems),
            hint="give the checkpoint that was recorded, or record this one anew",
        )
