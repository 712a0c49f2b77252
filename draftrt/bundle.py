"""The artefact folder: a versioned manifest, graphs, plans, tokenizer; written atomically.

Stages meet here and nowhere else. This module knows files, hashes and the manifest's shape, not
how a graph is made or run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from draftrt.bundle_files import (
    MANIFEST,
    Expected,
    Verify,
    content_problems,
    expected_files,
    manifest_text,
    read_manifest,
    remember_written,
    size_problems,
)
from draftrt.errors import BundleError
from draftrt.files import (
    NO_ROOM,
    REPLACED,
    cannot_write,
    scratch_folder,
    sha256_of,
    sync_folder,
    sync_tree,
    write_atomically,
)
from draftrt.hub.pairs import candidates
from draftrt.lifecycle import whole
from draftrt.manifest import LINKED, FileEntry, GraphEntry, LinkEntry, Manifest, PlanEntry
from draftrt.quantization import DRAFT
from draftrt.spec import DrafterSpec

__all__ = [
    "MANIFEST",
    "Bundle",
    "FileEntry",
    "GraphEntry",
    "LinkEntry",
    "Manifest",
    "PlanEntry",
    "Verify",
    "read_manifest",
    "sha256_of",
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
    def open(
        cls,
        path: Path | str,
        *,
        verify: Verify = Verify.REMEMBERED,
        needs_plans: bool = True,
    ) -> Bundle:
        """Read the manifest and check that every file it lists is there as it was written.

        A plan that was deleted counts as not built.

        Args:
            path: the bundle's folder.
            verify: how much of the files' content is read.
            needs_plans: whether plans have to be whole too; else damaged ones count as not built.

        Raises:
            BundleError: no bundle there, another format version, or files missing, outside the
                bundle, resized, or of other content; names each of them.
        """
        folder = Path(path)
        _check_name(folder)
        manifest = _with_plans_there(folder, read_manifest(folder))
        expected = expected_files(manifest)
        problems = _problems(folder, expected, verify)
        if problems and not needs_plans:
            lost = {
                name
                for name, plan in manifest.plans.items()
                if not problems.keys().isdisjoint((plan.file, plan.log))
            }
            kept = {name: plan for name, plan in manifest.plans.items() if name not in lost}
            manifest = replace(manifest, plans=kept)
            expected = expected_files(manifest)
            problems = {name: one for name, one in problems.items() if name in expected}
        if problems:
            raise _damaged(folder, expected, problems)
        return cls(folder, manifest)

    def verify_hashes(self) -> None:
        """Hash every file and compare with the manifest.

        Raises:
            BundleError: names every file that is not as it was written.
        """
        expected = expected_files(self.manifest)
        if problems := _problems(self.path, expected, Verify.ALL):
            raise _damaged(self.path, expected, problems)

    def remember(self) -> None:
        """Count the files, which this process has just written and hashed, as verified here."""
        remember_written(self.path, self.manifest)

    def graph(self, name: str = "draft") -> GraphEntry:
        """Return the entry of graph ``name``.

        Raises:
            BundleError: the bundle has no such graph.
        """
        if name not in self.manifest.graphs:
            raise BundleError(
                f"{self.path}: no graph {name!r}, it has {sorted(self.manifest.graphs)}",
                hint=self._missing_drafter()
                if name == DRAFT
                else "export the target's graph along with the rest",
            )
        return self.manifest.graphs[name]

    def _missing_drafter(self) -> str:
        origin = self.manifest.origins.get("target")
        target = origin.repository if origin is not None else self.manifest.target_path
        known = candidates(target or None)
        return "export a drafter with --target" + (f"; {known}" if known else "")

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
                f"{self.path}: holds a target and no drafter",
                hint=self._missing_drafter(),
            )
        return self.manifest.drafter

    def weight_bytes(self, graph: GraphEntry) -> int:
        """Return the size of a graph's weights, each counted once."""
        return graph.weight_bytes or self.manifest.files[graph.data].bytes

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


def _check_name(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise BundleError(
            f"{folder}: the folder's name is no UTF-8, which ONNX Runtime does not open",
            hint="rename the folder",
        ) from error


def _with_plans_there(folder: Path, manifest: Manifest) -> Manifest:
    there = {name: one for name, one in manifest.plans.items() if (folder / one.file).exists()}
    return replace(manifest, plans=there)


def _problems(folder: Path, expected: Mapping[str, Expected], verify: Verify) -> dict[str, str]:
    """Return what is wrong with the files of a bundle, by name."""
    problems = size_problems(folder, expected)
    whole_ones = {name: one for name, one in expected.items() if name not in problems}
    # Damage that is plain is told at once; content is read where it can be all that is wrong.
    return problems or content_problems(folder, whole_ones, verify)


def _damaged(
    folder: Path, expected: Mapping[str, Expected], problems: Mapping[str, str]
) -> BundleError:
    sources = {expected[name].source for name in problems} - {""}
    lines = problem_lines(expected, problems)
    hint = (
        "the bundle was changed or damaged after it was written; copy it again (`draftrt verify` "
        "checks a copy), or export it again"
    )
    if sources:
        hint = (
            f"the checkpoint that it is linked to was changed: {', '.join(sorted(sources))}; "
            "restore it, or export it again (--weights copy makes a bundle that stands alone)"
        )
    what = lines[0] if len(lines) == 1 else f"{len(lines)} files: " + "; ".join(lines)
    return BundleError(f"{folder}: {what}", hint=hint)


def problem_lines(expected: Mapping[str, Expected], problems: Mapping[str, str]) -> list[str]:
    """Return what is wrong with files, a line each."""
    return [
        f"{name} (linked from {expected[name].source}) {told}"
        if expected[name].source
        else f"{name} {told}"
        for name, told in problems.items()
    ]


def examine(path: Path | str) -> tuple[Manifest, dict[str, Expected], dict[str, str]]:
    """Hash every file of a bundle, whatever is remembered of it.

    Returns:
        The manifest, what it says of each file, and what is wrong, by the file's name.

    Raises:
        BundleError: no bundle there, or its manifest is damaged.
    """
    folder = Path(path)
    manifest = _with_plans_there(folder, read_manifest(folder))
    expected = expected_files(manifest)
    problems = size_problems(folder, expected)
    rest = {name: one for name, one in expected.items() if name not in problems}
    return manifest, expected, problems | content_problems(folder, rest, Verify.ALL)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace ``manifest.json`` in one step.

    Raises:
        BundleError: the folder cannot be written.
    """
    try:
        write_atomically(folder / MANIFEST, manifest_text(manifest).encode())
    except OSError as error:
        raise cannot_write(folder / MANIFEST, error, hint=ELSEWHERE) from error


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
    with ExitStack() as stack:
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(scratch_folder(final))
        except OSError as error:
            raise BundleError(f"{final}: cannot be made there: {error}") from error
        try:
            scratch.chmod(0o755)
            yield scratch
            sync_tree(scratch, but={LINKED})
            _check_free(final, force=force)  # another command may have written it meanwhile
            _put(scratch, final)
        except BaseException as error:
            stack.close()
            for folder in missing:
                with suppress(OSError):  # somebody else put something there
                    folder.rmdir()
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise cannot_write(final, error, hint="") from error
            raise


def _check_free(final: Path, *, force: bool) -> None:
    _check_name(final)
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
    with scratch_folder(final, REPLACED) as old:
        place = old / final.name
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
    return Bundle.open(bundle.path, needs_plans=False)


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
