"""What a name of a checkpoint is: ``owner/name[@revision]``, where no such folder is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftrt.codec import path_problem
from draftrt.errors import CheckpointError

MAIN = "main"
MOST_LETTERS = 96  # of a repository, as the hub has it
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
_SNAPSHOT = re.compile(r"models--(.+?)--(.+)")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub at a revision.

    Attributes:
        repository: ``owner/name``.
        revision: branch, tag or commit.
    """

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return self.repository + ("" if self.revision == MAIN else f"@{self.revision}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOrigin:
    """Where on the hub a checkpoint came from.

    Attributes:
        repository: ``owner/name``.
        commit: the pinned revision.
        files: each file that was there to its hash at the hub, the SHA-256 of large files and Git's
            blob hash of others; empty where the cache does not tell.
    """

    repository: str
    commit: str
    files: Mapping[str, str]


def parse_name(text: str) -> HubName | None:
    """Return the name that a text is, None where it has the form of none.

    Raises:
        CheckpointError: the form of a name, with a revision that can be none.
    """
    repository, at, revision = text.partition("@")
    is_name = (
        _REPOSITORY.fullmatch(repository)
        and len(repository) <= MOST_LETTERS
        and not any(odd in repository for odd in ("--", ".."))
        and not repository.endswith(".git")
    )
    if not is_name:
        return None
    if not at:
        return HubName(repository)
    if not _REVISION.fullmatch(revision) or ".." in revision or path_problem(revision):
        raise CheckpointError(
            f"{repository}: got revision {revision!r:.60}, expected a branch, a tag or a commit",
            hint=f"write {repository}@REVISION, or {repository} for its branch {MAIN}",
        )
    return HubName(repository, revision)


def name_of(path: Path | str) -> HubName | None:
    """Return the name that stands in place of a folder; None for a path, be there what may.

    A relative folder of that form wins over a repository.

    Raises:
        CheckpointError: the form of a name, with a revision that can be none.
    """
    text = str(path)
    if path_problem(text) or Path(text).exists() or Path(text).is_symlink():
        return None
    return parse_name(text)


def origin_of(folder: Path) -> HubOrigin | None:
    """Return where a folder came from, if it is a snapshot of the hub's cache; else None."""
    place = folder.resolve()
    found = _SNAPSHOT.fullmatch(place.parent.parent.name)
    if found is None or place.parent.name != "snapshots" or not COMMIT.fullmatch(place.name):
        return None
    links = sorted(path for path in place.rglob("*") if path.is_symlink())
    blobs = {path.relative_to(place).as_posix(): path.resolve().name for path in links}
    return HubOrigin(repository=f"{found[1]}/{found[2]}", commit=place.name, files=blobs)
