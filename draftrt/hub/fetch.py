"""Takes a checkpoint from the hub into its cache: only what is needed, checked, and resumed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import BinaryIO, TypeVar

from draftrt.codec import read_object
from draftrt.errors import CheckpointError, printable
from draftrt.files import sha256_of
from draftrt.hub.listing import (
    CONFIG,
    INDEX,
    PARTIAL,
    WEIGHTS,
    HubFile,
    Listing,
    OfflineError,
    answering,
    cached_snapshot,
    hub,
    list_repository,
    told,
    transport_error,
)
from draftrt.hub.names import HubName, name_of, parse_name

Folder = TypeVar("Folder", Path, "Path | None")
PART = "draftrt.incomplete"  # of a blob that is not whole yet; the next command goes on with it
SHA256, SHA1 = 64, 40  # digits
MOST_FAILURES, PAUSE = 4, 1.0  # tries that bring nothing, one behind another; seconds between
_said: set[str] = set()


def say(line: str) -> None:
    """Say once what a name was taken for."""
    if line not in _said:
        _said.add(line)
        sys.stderr.write(f"{printable(line)}\n")


def local_folder(path: Folder) -> Folder:
    """Return a checkpoint's folder: the one given, or the hub's, taken into its cache first.

    Args:
        path: a folder, or ``owner/name[@revision]`` where no such folder is.

    Raises:
        DraftrtError: the name cannot be had.
    """
    if path is None:
        return path
    name = name_of(path)
    if name is not None:
        return fetch(name)
    is_relative = not Path(path).is_absolute() and Path(path).is_dir()
    if is_relative and parse_name(str(path)) is not None:
        say(f"note: {path}: taken as the folder here, not as a name on the hub")
    return path


def fetch(name: HubName) -> Path:
    """Return the folder of the cache with everything of a checkpoint that is read.

    Raises:
        DraftrtError: it cannot be had, whole and as the hub has it.
    """
    found = resolve(name)
    if isinstance(found, Path):
        return found
    found.check()
    for file in found.small_files:
        folder = _take(found, file).parent
        if "/" in file.name:
            folder = folder.parent
    for file in needed_weights(found, folder):
        _take(found, file)
    return folder


def resolve(name: HubName) -> Listing | Path:
    """Return what the hub lists for a name; offline the whole snapshot that its cache has.

    Raises:
        DraftrtError: neither.
    """
    try:
        listing = list_repository(name)
    except OfflineError as error:
        folder = cached_snapshot(name)
        if folder is None:
            raise
        if missing := lacks(folder):
            raise CheckpointError(
                f"{name}: the cache holds a part of it, without {', '.join(missing[:3])}: {folder}",
                hint="the download is incomplete; let the same command reach the hub once",
            ) from error
        say(f"{name}: the hub was not asked, commit {folder.name[:12]} is in the cache")
        return folder
    say(f"{name}: commit {listing.commit} on the hub")
    return listing


def lacks(folder: Path) -> list[str]:
    """Return what a snapshot lacks of a checkpoint; it may be one of an interrupted download."""
    index = folder / INDEX
    if index.exists():
        shards = read_object(index, CheckpointError).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
    else:
        names = [path.name for path in folder.glob(f"*{WEIGHTS}")] or [f"model{WEIGHTS}"]
    return [name for name in (CONFIG, *names) if not (folder / name).is_file()]


def needed_weights(listing: Listing, folder: Path) -> list[HubFile]:
    """Return the weight files that the index names, or all where there is none.

    Raises:
        CheckpointError: the index cannot be read, or names a file that the repository has not.
    """
    index = folder / INDEX
    if INDEX not in listing.files:
        return listing.weights
    shards = read_object(index, CheckpointError).get("weight_map")
    names = sorted(set(shards.values())) if isinstance(shards, dict) else []
    known = {file.name: file for file in listing.weights}
    if missing := [name for name in names if name not in known]:
        raise CheckpointError(
            f"{listing.name}: {INDEX} names {missing[0]!r:.100}, which the repository has not",
            hint="the repository is incomplete; ask its publisher, or take another revision",
        )
    return [known[name] for name in names]


def _take(listing: Listing, file: HubFile) -> Path:
    """Take one file into the cache, unless it is there, and return its place in the snapshot."""
    package, name = hub(), listing.name
    known = package.try_to_load_from_cache(name.repository, file.name, revision=listing.commit)
    if isinstance(known, str) and (file.bytes is None or Path(known).stat().st_size == file.bytes):
        _keep_revision(listing, Path(known))
        return Path(known)
    with told(name, file.name):
        url = package.hf_hub_url(name.repository, file.name, revision=listing.commit)
        about = package.get_hf_file_metadata(url, token=None)
        hashes = tuple({*file.hashes, *([about.etag] if about.etag else [])})
        blob = _blobs(name) / str(about.etag)
        is_plain = about.xet_file_data is None and len(str(about.etag)) in (SHA1, SHA256)
        if is_plain and str(about.etag).isalnum() and not blob.exists():
            _download(url, blob, hashes, listing, file, about.size)
        place = Path(
            package.hf_hub_download(
                name.repository, file.name, revision=listing.commit, library_name="draftrt"
            )
        )
    if not is_plain:
        check_hash(place, hashes, f"{name}: {file.name}")
    _keep_revision(listing, place)
    return place


def _blobs(name: HubName) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}" / "blobs"


def _keep_revision(listing: Listing, place: Path) -> None:
    """Remember which commit a branch or tag was, as the hub's package does, for offline use."""
    if listing.name.revision == listing.commit:
        return
    root = _blobs(listing.name).parent / "refs"
    ref = root / listing.name.revision
    if place.exists() and not (ref.is_file() and ref.read_text() == listing.commit):
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(listing.commit)


def _download(
    url: str,
    blob: Path,
    hashes: Sequence[str],
    listing: Listing,
    file: HubFile,
    size: int | None,
) -> None:
    """Take a blob, going on behind the bytes of an interrupted try, and check it.

    Raises:
        CheckpointError: the content is not what the hub says.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{blob.name}.{PART}")
    with part.open("ab") as stream:
        if not _is_ours(stream, part) or blob.exists():
            return  # another process took it meanwhile
        start = stream.tell()
        if size is not None and start > size:
            stream.truncate(start := 0)
        if start:
            say(f"{listing.name}: {file.name}: goes on behind {start / 1e6:.1f} MB")
        _append(url, stream, file.name, size)
        stream.flush()
        os.fsync(stream.fileno())
        check_hash(part, hashes, f"{listing.name}: {file.name}")
        part.replace(blob)


def _append(url: str, stream: BinaryIO, name: str, size: int | None) -> None:
    """Take the rest of a file, anew behind what came where an answer breaks off.

    The package's own `http_get` writes ten megabytes at a time, and keeps none of them in the end.
    """
    from huggingface_hub.utils.tqdm import tqdm

    failures = 0
    with tqdm(  # type: ignore[no-untyped-call]
        total=size, initial=stream.tell(), desc=name, unit="B", unit_scale=True, disable=None
    ) as bar:
        while size is None or stream.tell() < size:
            start = stream.tell()
            try:
                with answering(url, {"Range": f"bytes={start}-"} if start else {}) as answer:
                    if start and answer.status_code != PARTIAL:
                        stream.truncate(0)
                        stream.seek(0)
                        bar.update(-start)
                    for chunk in answer.iter_bytes():
                        stream.write(chunk)
                        bar.update(len(chunk))
                if size is None:
                    return
            except transport_error() as error:
                failures = 0 if stream.tell() > start else failures + 1
                if failures == MOST_FAILURES or getattr(error, "response", None) is not None:
                    raise
                sleep(failures * PAUSE)


def _is_ours(stream: BinaryIO, part: Path) -> bool:
    """Wait until no other process writes a part; false where it was finished meanwhile."""
    fcntl.flock(stream, fcntl.LOCK_EX)
    try:
        return os.fstat(stream.fileno()).st_ino == part.stat().st_ino
    except FileNotFoundError:
        return False


def check_hash(path: Path, hashes: Sequence[str], what: str) -> None:
    """Remove a file whose content is another one than the hub states.

    Raises:
        CheckpointError: it was.
    """
    for expected in hashes:
        if len(expected) == SHA256:
            got = {sha256_of(path)}
        elif len(expected) == SHA1:
            got = _sha1s(path)
        else:
            continue
        if expected not in got:
            found = next(iter(got))
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise CheckpointError(
                f"{what}: got content with hash {found[:16]}..., expected {expected[:16]}... as "
                "the hub states it",
                hint="the download was damaged and is removed; try again",
            )


def _sha1s(path: Path) -> set[str]:
    """Return Git's hash of a blob, and the plain one, which some mirrors state."""
    content = path.read_bytes()
    header = f"blob {len(content)}\0".encode()
    digests = (hashlib.sha1(one, usedforsecurity=False) for one in (header + content, content))
    return {digest.hexdigest() for digest in digests}
