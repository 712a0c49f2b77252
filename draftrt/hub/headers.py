"""Checkpoints of the hub without their weights: configs, and the headers of the safetensors.

A folder is made that reads like the checkpoint: each weight file has its header and, behind it, a
hole as large as the weights, which takes no disk. The few tensors that a description needs
(vocabulary maps, say) are fetched when they are read.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from draftrt.errors import CheckpointError, DraftrtError
from draftrt.hub.fetch import check_hash, lacks, local_folder, needed_weights, resolve
from draftrt.hub.listing import PARTIAL, HubFile, Listing, cached_snapshot, get, hub, told
from draftrt.hub.names import HubName, name_of

FIRST = 1 << 16  # bytes of a file that are asked for at first: most headers are shorter
MOST_HEADER = 100_000_000
LENGTH = 8  # bytes in front of a header that say how long it is


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of which only a part is here.

    Attributes:
        listing: where the rest is.
        file: which it is there.
        held: bytes from the start that are here.
    """

    listing: Listing
    file: HubFile
    held: int


_remote: dict[Path, Remote] = {}


def fill(path: Path, offset: int, size: int) -> None:
    """Take bytes of a file that is here in part, before they are read; else do nothing.

    Raises:
        DraftrtError: they cannot be had.
    """
    remote = _remote.get(path)
    if remote is None or offset + size <= remote.held:
        return
    content, _ = read_range(remote.listing, remote.file, offset, size)
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


@contextmanager
def described_folders(*paths: Path | None) -> Iterator[list[Path | None]]:
    """Give folders to describe: those given, and for names of the hub such without weights.

    What is raised within names the repository and not the folder, which is gone afterwards.
    """
    root: Path | None = None
    names: dict[str, str] = {}
    try:
        folders: list[Path | None] = []
        for path in paths:
            name = None if path is None else name_of(path)
            if name is None:
                folders.append(local_folder(path))
                continue
            if root is None:
                root = Path(tempfile.mkdtemp(prefix="draftrt-hub-"))
            folder, shown = _describe(name, root)
            names[str(folder)] = shown
            folders.append(folder)
        yield folders
    except DraftrtError as error:
        raise _renamed(error, names) from error
    finally:
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)
        for path in [one for one in _remote if root is not None and one.is_relative_to(root)]:
            del _remote[path]


def _renamed(error: DraftrtError, names: dict[str, str]) -> DraftrtError:
    for folder, name in names.items():
        error.message = error.message.replace(folder, name)
        error.hint = error.hint.replace(folder, name)
    error.args = (error.message,)
    return error


def _describe(name: HubName, root: Path) -> tuple[Path, str]:
    """Return a folder to describe, and how it is called."""
    found = resolve(name)
    if isinstance(found, Path):
        return found, str(found)
    whole = cached_snapshot(HubName(name.repository, found.commit))
    if whole is not None and not lacks(whole):
        return whole, str(whole)
    found.check()
    folder = root / name.repository
    folder.mkdir(parents=True, exist_ok=True)
    for file in found.small_files:
        place = folder / file.name
        place.parent.mkdir(exist_ok=True)
        with told(name, file.name):
            url = hub().hf_hub_url(name.repository, file.name, revision=found.commit)
            answer = get(url)
        place.write_bytes(answer.content)
        check_hash(place, file.hashes, f"{name}: {file.name}")
    for file in needed_weights(found, folder):
        _place_header(found, file, folder / file.name)
    return folder, f"{name.repository}@{found.commit[:12]}"


def _place_header(listing: Listing, file: HubFile, place: Path) -> None:
    """Write a file with the header of the hub's and a hole behind it."""
    content, total = read_range(listing, file, 0, FIRST)
    length = LENGTH + int.from_bytes(content[:LENGTH], "little")
    if length > len(content) and length <= min(MOST_HEADER, total):
        more, _ = read_range(listing, file, len(content), length - len(content))
        content += more
    with place.open("wb") as stream:
        stream.write(content)
        stream.truncate(total)
    _remote[place] = Remote(listing, file, len(content))


def read_range(listing: Listing, file: HubFile, offset: int, size: int) -> tuple[bytes, int]:
    """Return bytes of a file, fewer where it ends, and its size.

    Raises:
        DraftrtError: they cannot be had.
    """
    name = listing.name
    with told(name, file.name):
        url = hub().hf_hub_url(name.repository, file.name, revision=listing.commit)
        answer = get(url, {"Range": f"bytes={offset}-{offset + size - 1}"})
    stated = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
    if answer.status_code != PARTIAL or not stated.isdecimal():
        raise CheckpointError(
            f"{name}: {file.name}: the hub gives no parts of a file (got status "
            f"{answer.status_code}), expected a range",
            hint="take the whole checkpoint first, by draftrt export or `hf download`",
        )
    content: bytes = answer.content
    return content, int(stated)
