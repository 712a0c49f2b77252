"""The files of a bundle against its manifest: there, inside the bundle, of their size and content.

Nothing is read before its place and kind are known: a file lies in the bundle, or is a symbolic
link into the ``blobs`` of a Hugging Face cache that the bundle lies in, and is a regular file.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from draftrt.hashing import sample_sha256, sha256_of
from draftrt.manifest import LinkEntry, Manifest
from draftrt.verified import Known, Stamp, read_known, remember, stamp_of

SMALL_BYTES = 1 << 20
SHOWN_BYTES = 64 << 20  # hashing less than that shows no progress
MOST_NAME = 1000
ERASE = "\r\033[K"
BLOBS, CACHED_MODEL = "blobs", "models--"


class Verify(Enum):
    """How much of a bundle's content is read when it is opened.

    NONE: nothing; sizes are compared. REMEMBERED: every byte the first time on this machine and
    where a file was touched since, else small files and samples of large ones. ALL: every byte.
    """

    NONE = "none"
    REMEMBERED = "remembered"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a manifest says of a file; empty or None where it says nothing.

    Attributes:
        bytes: size.
        sha256: hash of all of it.
        sample_sha256: hash of its samples.
        source: where a linked file lay.
    """

    bytes: int | None
    sha256: str
    sample_sha256: str = ""
    source: str = ""


def expected_files(manifest: Manifest) -> dict[str, Expected]:
    """Return what a manifest says of every file, by its relative path."""
    found = {name: Expected(bytes=e.bytes, sha256=e.sha256) for name, e in manifest.files.items()}
    found |= {name: _of_link(entry) for name, entry in manifest.links.items()}
    for plan in manifest.plans.values():
        found[plan.file] = Expected(bytes=plan.size_bytes, sha256=plan.sha256)
        if plan.log_sha256:
            found[plan.log] = Expected(bytes=None, sha256=plan.log_sha256)
    return found


def _of_link(entry: LinkEntry) -> Expected:
    return Expected(
        bytes=entry.bytes,
        sha256=entry.sha256,
        sample_sha256=entry.sample_sha256,
        source=entry.source,
    )


def name_problem(name: str) -> str:
    """Return why a text is no relative path inside a bundle; empty when it is one."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "got a name that is no Unicode text"
    if not name or length > MOST_NAME or any(len(p.encode()) > 255 for p in name.split("/")):
        return f"got a name of {length} bytes, expected 1 to {MOST_NAME}, and 255 between slashes"
    if not name.isprintable():
        return f"got {name!r:.80}, expected printable characters"
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in path.parts[0] or ".." in path.parts:
        return f"got {name!r:.200}, expected a path inside the bundle"
    if str(path) != name or name == ".":
        return f"got {name!r:.200}, expected it without '.' and doubled slashes"
    return ""


def place_problem(bundle: Path, name: str) -> str:
    """Return why a file of a bundle is not to be read; empty when it is."""
    path = bundle / name
    try:
        found = path.stat()
        place = path.resolve()
    except FileNotFoundError:
        target = path.readlink() if path.is_symlink() else None
        return (
            "is missing"
            if target is None
            else f"is a symbolic link to {target}, which is not there"
        )
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read: {why or error}"
    root = bundle.resolve()
    if not place.is_relative_to(root) and not _is_blob(place, root):
        return (
            f"is a symbolic link out of the bundle, to {place}; expected a file in it, or in the "
            f"{BLOBS} of the Hugging Face cache that it lies in"
        )
    if not stat.S_ISREG(found.st_mode):
        return "is a folder, pipe or device, expected a file"
    return ""


def _is_blob(place: Path, root: Path) -> bool:
    """Whether a file lies in the blobs that a snapshot's symbolic links lead to."""
    if place.parent.name != BLOBS:
        return False
    owner = place.parent.parent
    return owner.name.startswith(CACHED_MODEL) or owner in root.parents


def size_problems(bundle: Path, expected: Mapping[str, Expected]) -> dict[str, str]:
    """Return what is wrong with the places, kinds and sizes of files, by name."""
    found = {name: _size_problem(bundle, name, one) for name, one in expected.items()}
    return {name: problem for name, problem in found.items() if problem}


def _size_problem(bundle: Path, name: str, expected: Expected) -> str:
    problem = place_problem(bundle, name)
    if problem:
        return problem
    size = (bundle / name).stat().st_size
    if expected.bytes is None or size == expected.bytes:
        return ""
    return f"has {size} bytes, expected {expected.bytes}"


def content_problems(
    bundle: Path, expected: Mapping[str, Expected], verify: Verify
) -> dict[str, str]:
    """Return whose content differs from what was written, by name, and remember what does not.

    Args:
        bundle: its folder.
        expected: files that are there, regular and of their size.
        verify: how much is read.
    """
    if verify is Verify.NONE:
        return {}
    known = read_known(bundle)
    stamps = {name: stamp_of(bundle / name) for name in expected}
    changed = [
        name
        for name, one in expected.items()
        if verify is Verify.ALL or not _is_as_known(bundle / name, one, stamps[name], known, name)
    ]
    problems: dict[str, str] = {}
    checked: dict[str, Known] = {}
    progress = _Hashing(sum(stamps[name].bytes for name in changed))
    for name in changed:
        path, one = bundle / name, expected[name]
        try:
            problem, sha256 = _hashed(path, one, known.get(name), progress)
        except OSError as error:
            problem, sha256 = f"cannot be read: {error.strerror or error}", ""
        if problem:
            problems[name] = problem
        elif stamp_of(path) == stamps[name]:  # nobody wrote to it meanwhile
            checked[name] = Known(
                stamp=stamps[name], sha256=sha256, sample_sha256=sample_sha256(path)
            )
    progress.end()
    if any(known.get(name) != one for name, one in checked.items()):
        remember(bundle, {name: one for name, one in (known | checked).items() if name in expected})
    return problems


def remember_written(bundle: Path, manifest: Manifest) -> None:
    """Remember the files of a bundle that this process has just written and hashed."""
    known = read_known(bundle)
    for name, one in expected_files(manifest).items():
        path = bundle / name
        if one.sha256 and path.is_file():
            sample = sample_sha256(path)
            known[name] = Known(stamp=stamp_of(path), sha256=one.sha256, sample_sha256=sample)
    remember(bundle, known)


def _is_as_known(
    path: Path, expected: Expected, stamp: Stamp, known: Mapping[str, Known], name: str
) -> bool:
    """Whether a file is as it was when it was hashed, by its stamp and samples of its content."""
    before = known.get(name)
    if before is None or before.stamp != stamp or stamp.bytes <= SMALL_BYTES:
        return False
    if expected.sha256 and before.sha256 != expected.sha256:
        return False
    try:
        return sample_sha256(path) == before.sample_sha256
    except OSError:
        return False


def _hashed(
    path: Path, expected: Expected, before: Known | None, progress: _Hashing
) -> tuple[str, str]:
    """Return what is wrong with a file's content, and its hash.

    Of a file whose hash the manifest lacks, that of the first time on this machine counts.
    """
    found = sha256_of(path, lambda count: progress.add(path.name, count))
    wanted = expected.sha256 or (before.sha256 if before else found)
    if found != wanted:
        return f"got sha256 {found[:12]}…, expected {wanted[:12]}…", found
    if not expected.sha256 and expected.sample_sha256:
        sample = sample_sha256(path)
        if sample != expected.sample_sha256:
            wanted = expected.sample_sha256
            return f"got samples of sha256 {sample[:12]}…, expected {wanted[:12]}…", found
    return "", found


class _Hashing:
    """How far the hashing of files is, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._is_shown = total > SHOWN_BYTES and sys.stderr.isatty()

    def add(self, name: str, count: int) -> None:
        """Count bytes and show them."""
        self._done += count
        if self._is_shown:
            figures = f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB"
            sys.stderr.write(f"{ERASE}verifying {name}: {figures}")
            sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
