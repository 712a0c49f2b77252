"""The artefact folder: a versioned manifest, graphs, plans, tokenizer; written atomically.

Stages meet here and nowhere else. This module knows files, hashes and the manifest's shape, not
how a graph is made or run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from draftrt.codec import to_json
from draftrt.durable import NO_ROOM, sync, sync_folder, sync_tree
from draftrt.errors import BundleError
from draftrt.interrupts import whole
from draftrt.linked import FOLDER as LINKED
from draftrt.linked import link_problem
from draftrt.manifest import FileEntry, GraphEntry, LinkEntry, Manifest, PlanEntry
from draftrt.manifest_file import FORMAT, MANIFEST, VERSION, read_manifest
from draftrt.spec import DrafterSpec

__all__ = [
    "MANIFEST",
    "Bundle",
    "FileEntry",
    "GraphEntry",
    "LinkEntry",
    "Manifest",
    "PlanEntry",
    "read_manifest",
]
ELSEWHERE = "copy the bundle to a place that you may write to"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk, opened for reading.

    Attributes:
        path: the folder.
        manifest: its manifest.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str) -> Bundle:
        """Read the manifest and check that every file it lists exists with its size.

        Of linked files samples are compared too. A plan that was deleted counts as not built.

        Raises:
            BundleError: no bundle there, another format version, or files missing, resized or, of
                linked ones, of other content.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        plans = {name: e for name, e in manifest.plans.items() if (folder / e.file).is_file()}
        bundle = cls(folder, replace(manifest, plans=plans))
        sizes = {name: entry.bytes for name, entry in bundle.manifest.files.items()}
        sizes |= {entry.file: entry.size_bytes for entry in bundle.manifest.plans.values()}
        wrong = [_size_problem(folder / name, size) for name, size in sizes.items()]
        problems = [problem for problem in wrong if problem]
        if problems:
            raise BundleError(
                f"{folder}: " + "; ".join(problems),
                hint="the bundle was changed after it was written; export it again",
            )
        changed = [link_problem(folder / name, e) for name, e in manifest.links.items()]
        if any(changed):
            raise BundleError(
                f"{folder}: " + "; ".join(problem for problem in changed if problem),
                hint="the checkpoint was changed; restore it, or export it again "
                "(--weights copy makes a bundle that stands alone)",
            )
        return bundle

    def graph(self, name: str = "draft") -> GraphEntry:
        """Return the entry of graph ``name``.

        Raises:
            BundleError: the bundle has no such graph.
        """
        if name not in self.manifest.graphs:
            raise BundleError(
                f"{self.path}: no graph {name!r}, it has {sorted(self.manifest.graphs)}",
                hint="export the drafter, or the target's graph, along with the rest",
            )
        return self.manifest.graphs[name]

    def file(self, relative: str) -> Path:
        """Return the absolute path of a file of the bundle."""
        return self.path / relative

    def drafter(self) -> DrafterSpec:
        """Return the drafter's facts.

        Raises:
            BundleError: the bundle holds a target alone.
        """
        if self.manifest.drafter is None:
            raise BundleError(
                f"{self.path}: holds a target and no drafter", hint="export a drafter with --target"
            )
        return self.manifest.drafter

    def weights_sha256(self, graph: GraphEntry) -> str:
        """Return a hash that stands for the weights of a graph, from the manifest alone.

        Raises:
            BundleError: the manifest does not list a data file.
        """
        known = {name: entry.sha256 for name, entry in self.manifest.files.items()}
        known |= {
            name: link.sha256 or link.sample_sha256 for name, link in self.manifest.links.items()
        }
        names = sorted({graph.data, *graph.borrowed.values(), *self.manifest.links})
        lost = [name for name in names if name not in known]
        if lost:
            raise BundleError(
                f"{self.path}: the manifest does not list {lost[0]}", hint="export it again"
            )
        if len(names) == 1:
            return known[graph.data]
        return hashlib.sha256("\n".join(known[name] for name in names).encode()).hexdigest()

    def verify_hashes(self) -> None:
        """Hash every file and compare with the manifest; linked ones where their hash is known.

        Raises:
            BundleError: lists every file whose content changed.
        """
        known = {name: entry.sha256 for name, entry in self.manifest.files.items()}
        known |= {name: link.sha256 for name, link in self.manifest.links.items() if link.sha256}
        changed = [name for name, sha in known.items() if sha256_of(self.path / name) != sha]
        if changed:
            raise BundleError(
                f"{self.path}: content changed since it was written: {changed}",
                hint="export it again, or restore the files",
            )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace ``manifest.json`` in one step.

    Raises:
        BundleError: the folder cannot be written.
    """
    text = json.dumps({"format": FORMAT, "version": VERSION, **to_json(manifest)}, indent=1)
    try:
        write_atomically(folder / MANIFEST, (text + "\n").encode())
    except OSError as error:
        raise BundleError(
            f"{folder}: cannot be written: {error.strerror}", hint=ELSEWHERE
        ) from error


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


@contextmanager
def new_bundle(path: Path | str, *, force: bool = False) -> Iterator[Path]:
    """Give a scratch folder beside ``path`` that becomes ``path`` when the block succeeds.

    On any exception, an interrupt included, the scratch folder is removed and ``path`` stays as
    it was.

    Raises:
        BundleError: ``path`` exists and ``force`` is not given, or is no bundle; there is no room.
    """
    final = Path(path)
    _check_free(final, force=force)
    missing = [folder for folder in final.parents if not folder.exists()]
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.partial-"))
    except OSError as error:
        raise BundleError(f"{final}: cannot be made there: {error}") from error
    try:
        scratch.chmod(0o755)
        yield scratch
        sync_tree(scratch, but={LINKED})
        _check_free(final, force=force)  # another command may have written it meanwhile
        _put(scratch, final)
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in missing:
            with suppress(OSError):  # somebody else put something there
                folder.rmdir()
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise BundleError(
                f"{final}: cannot be written: {error.strerror}",
                hint="make room, or write elsewhere",
            ) from error
        raise


def _check_free(final: Path, *, force: bool) -> None:
    if not final.exists():
        return
    other = "choose another -o folder"
    if not force:
        hint = f"{other}, or pass --force" if _is_replaceable(final) else other
        raise BundleError(f"{final} exists", hint=hint)
    if not _is_replaceable(final):
        what = f"{final} exists and is no bundle; --force replaces only bundles"
        raise BundleError(what, hint=f"{other}, or remove this one yourself")
    if not os.access(final, os.W_OK | os.X_OK):
        raise BundleError(f"{final}: not to be written to", hint=other)


def _is_replaceable(path: Path) -> bool:
    """Whether a path is a bundle or an empty folder."""
    return path.is_dir() and ((path / MANIFEST).is_file() or not any(path.iterdir()))


@whole
def _put(scratch: Path, final: Path) -> None:
    """Give a finished folder its name; one of that name goes only when the new one is there."""
    if not final.exists():
        scratch.replace(final)
        sync_folder(final.parent)
        return
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}.replaced-") as old:
        place = Path(old) / final.name
        try:
            final.replace(place)
            scratch.replace(final)
        except BaseException:
            if place.exists() and not final.exists():
                place.replace(final)
            raise
        sync_folder(final.parent)


def add_plan(bundle: Bundle, entry: PlanEntry) -> Bundle:
    """Record a plan (already at its place) in the manifest and return the bundle re-read."""
    manifest = read_manifest(bundle.path)
    plans = {**manifest.plans, entry.file: entry}
    write_manifest(bundle.path, replace(manifest, plans=plans))
    return Bundle.open(bundle.path)


def hash_files(
    folder: Path, known: Mapping[str, FileEntry] = MappingProxyType({})
) -> dict[str, FileEntry]:
    """Return size and hash of every file below ``folder`` but the manifest, plans and links.

    Args:
        folder: the bundle's.
        known: relative path to what is known of a file already; it is not read again.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name in known:
            found[name] = known[name]
        elif path.is_file() and name != MANIFEST and Path(name).parts[0] not in ("plans", LINKED):
            found[name] = FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
    return found


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file's content."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _size_problem(path: Path, size: int) -> str:
    if not path.is_file():
        return f"{path.name} is missing"
    found = path.stat().st_size
    return "" if found == size else f"{path.name} has {found} bytes, expected {size}"
