"""Files and folders that a bundle can rely on: written whole, hashed, locked, remembered.

Written: a rename may reach the disk before the content of what was renamed does. After a power cut
a bundle would be there, whole by its name and empty inside; so the disk is waited for.

Hashed, by every byte, about a second and a half a gigabyte, or by samples that take the same time
whatever the size: the size, the first 64 KB (in safetensors the names, types, shapes and places of
all tensors) and 64 blocks of 4 KB spread evenly from the first byte to the last. A file that was
replaced, cut or converted differs there; a change of single weights elsewhere does not show. The
same is done tensor by tensor for the weights of a model folder: another revision or a fine-tune has
other bytes nearly everywhere in the tensors that were trained.

Locked: a folder that a command works in is locked while it lives, and the lock ends with the
process, however that ends. So the next command tells what a killed one left from what another one
is writing.

Remembered, in a record outside the bundle: a file whose size, place on the disk and times are those
of the record is not hashed again; a small one is read whole, of a large one samples are compared.
One process replaces the record of another in one step, and a file that a record lacks is hashed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from draftrt.codec import check_file, read_object
from draftrt.errors import BundleError, DraftrtError

T = TypeVar("T")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, or a share of it, is full
ROOM = "make room, or write elsewhere"


def cannot_write(
    place: Path, error: OSError, kind: type[DraftrtError] = BundleError, *, hint: str
) -> DraftrtError:
    """Return the error that a place cannot be written.

    Args:
        place: a file or folder.
        error: why.
        kind: class of the error.
        hint: what to do where it is not for want of room.
    """
    why = error.strerror or str(error)
    return kind(f"{place}: cannot be written: {why}", hint=ROOM if error.errno in NO_ROOM else hint)


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Name the place in the error of a write for which there is no room; Python does not.

    Raises:
        OSError: with the name of the file, or of the place where that is not known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(place)) from error


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Give a folder ``draftrt-PURPOSE-XXXXXXXX`` for files that are gone at the end.

    Raises:
        DraftrtError: there is no folder for temporary files, or no room in it.
    """
    hint = "make room there, or set TMPDIR to a folder that has it"
    try:
        folder = tempfile.TemporaryDirectory(prefix=f"draftrt-{purpose}-")
    except OSError as error:
        raise DraftrtError(f"temporary files: {error.strerror}", hint=hint) from error
    with folder as name:
        try:
            yield Path(name)
        except OSError as error:
            if error.errno not in NO_ROOM or error.filename not in (None, name):
                raise
            raise DraftrtError(
                f"{name}: temporary files cannot be written: {error.strerror}", hint=hint
            ) from error


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
    with writing_atomically(path) as stream:
        stream.write(content)


@contextmanager
def writing_atomically(path: Path) -> Iterator[BinaryIO]:
    """Give a stream whose content takes a file's place at the end, if nothing goes wrong."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with naming(path), os.fdopen(descriptor, "wb") as stream:
            yield stream
            sync(stream)
        Path(name).chmod(0o644)
        Path(name).replace(path)
        sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


HEAD_BYTES = 1 << 16
BLOCK_BYTES = 1 << 12
NUM_BLOCKS = 64
PIECE_BYTES = 1 << 22


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    """Return the hex SHA-256 of a file's content; ``on_bytes`` is told how many were read."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest()


def sample_sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file's size and samples; see the top of this file."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(HEAD_BYTES))
        for index in range(NUM_BLOCKS):
            stream.seek(max(0, size - BLOCK_BYTES) * index // (NUM_BLOCKS - 1))
            digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()


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


TENSOR_BLOCK_BYTES, TENSOR_NUM_BLOCKS = 1 << 10, 4
MOST_HEADER = 100 << 20
DIGITS = 16


def sample_tensors(folder: Path) -> dict[str, str]:
    """Return a short hash of every tensor's type, shape and samples, by name.

    Files that cannot be read as safetensors are left out; who loads the model names them.
    """
    return dict(chain.from_iterable(_of_each(folder, _sampled)))


def other_tensors(folder: Path, expected: dict[str, str]) -> tuple[str, ...]:
    """Return the tensors of a folder that are not those of the samples, or are not there.

    Args:
        folder: a model's.
        expected: what `sample_tensors` returned; empty where it is not known.
    """
    if not expected:
        return ()
    found = sample_tensors(folder)
    return tuple(name for name, sample in expected.items() if found.get(name) != sample)


def count_weights(folder: Path) -> int:
    """Return the number of elements of all tensors of a folder that can be read as safetensors."""
    return sum(chain.from_iterable(_of_each(folder, _counted)))


def _of_each(folder: Path, read: Callable[[IO[bytes]], Iterator[T]]) -> Iterator[list[T]]:
    """Give what a function reads in each safetensors file of a folder that is one."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            check_file(path, BundleError)
            with path.open("rb") as stream:
                yield list(read(stream))
        except (BundleError, OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def _header(stream: IO[bytes]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return where the data of a safetensors file begin, and its table of tensors."""
    length = int.from_bytes(stream.read(8), "little")
    if length > MOST_HEADER:
        raise ValueError("no header of safetensors")
    header: dict[str, dict[str, Any]] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return 8 + length, header


def _counted(stream: IO[bytes]) -> Iterator[int]:
    for entry in _header(stream)[1].values():
        yield math.prod(int(size) for size in entry["shape"])


def _sampled(stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    start, header = _header(stream)
    for name, entry in header.items():
        first, end = (int(one) for one in entry["data_offsets"])
        digest = hashlib.sha256(f"{entry['dtype']} {entry['shape']}".encode())
        for index in range(TENSOR_NUM_BLOCKS):
            place = first + max(0, end - first - TENSOR_BLOCK_BYTES) * index // (
                TENSOR_NUM_BLOCKS - 1
            )
            stream.seek(start + place)
            digest.update(stream.read(min(TENSOR_BLOCK_BYTES, end - place)))
        yield name, digest.hexdigest()[:DIGITS]
