"""Every drafter in every precision on ONNX Runtime: against its module, and against its record.

Each graph is exported as `draftrt export` does it. Drafters are independent of each other and can
be shared out among processes.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.compare.arrays import Finding
from draftrt.compare.measures import Measure
from draftrt.errors import DraftrtError
from draftrt.files import sha256_of, temporary_folder
from draftrt.manifest import Manifest
from draftrt.provenance import command_line, now, tool_versions
from draftrt.spec import Precision
from draftrt.tolerances import golden_limit
from draftrt.validate.parity.parity import ParityReport, check_parity
from draftrt.validate.records.cases import GoldenCase, read_case, recorded_hashes
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.golden import (
    check_width,
    compare_case,
    compare_rounded,
    context_of,
    drafter_of,
)
from draftrt.validate.rounds.plan import DEFAULT_ROUNDS

if TYPE_CHECKING:
    from draftrt.export.checkpoint.drafter import LoadedDrafter


DEFAULT_CONTEXT = 96
PRECISIONS = tuple(Precision)
IN_BF16 = "PyTorch in bf16: "  # before what is compared of the module, not of the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One drafter of the matrix: a golden case, or a checkpoint with its target.

    Attributes:
        case: folder of the case.
        draft: the checkpoint, also of a case that holds only its hashes.
        target: the target's checkpoint, also of a case that holds only hashes of its tables.
    """

    case: Path | None = None
    draft: Path | None = None
    target: Path | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        folder = self.case or self.draft
        assert folder is not None
        return folder.resolve().name


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One drafter in one precision.

    Attributes:
        name: the drafter.
        precision: element type of weights and caches.
        parity: the graph against its module; None where it could not be checked.
        record: what the graph drafts against the recorded answers, by name; in bf16 also, behind
            `IN_BF16`, what PyTorch drafts. None without a record.
        seconds: wall time, the export included.
        error: why it could not be checked; None when it was.
    """

    name: str
    precision: Precision
    parity: ParityReport | None = None
    record: dict[str, Finding | Measure] | None = None
    seconds: float = 0.0
    error: DraftrtError | None = None

    @property
    def verdict(self) -> str:
        """``same``, ``different`` or ``unchecked``."""
        if self.error is not None or self.parity is None:
            return "unchecked"
        return "same" if self.parity.is_same and all((self.record or {}).values()) else "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSettings:
    """How the matrix is checked.

    Attributes:
        precisions: columns.
        num_rounds: rounds of each of the two sequences of a parity check.
        max_context: rows of the caches; a drafter with a longer record gets as many as that takes.
    """

    precisions: tuple[Precision, ...] = PRECISIONS
    num_rounds: int = DEFAULT_ROUNDS
    max_context: int = DEFAULT_CONTEXT


def check_matrix(
    sources: Sequence[Source],
    settings: MatrixSettings,
    *,
    jobs: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[MatrixRow]:
    """Check drafters; one that cannot be checked does not stop the others.

    Args:
        sources: the drafters.
        settings: see `MatrixSettings`.
        jobs: processes that share them.
        report: gets one line a step; nothing from other processes.

    Yields:
        One row for each drafter and precision, in their order.
    """
    if jobs <= 1:
        for source in sources:
            yield from check_source(source, settings, report)
        return
    with (
        temporary_folder("matrix") as scratch,
        _processes(jobs, scratch) as pool,
    ):
        for rows in pool.map(check_source, sources, [settings] * len(sources)):
            yield from rows


@contextmanager
def _processes(jobs: int, scratch: Path) -> Iterator[ProcessPoolExecutor]:
    """Give processes that end with the block, at once where it is left by an exception.

    Args:
        jobs: how many.
        scratch: folder for their temporary files, which they may not live to remove.
    """
    with ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(str(scratch),),
    ) as pool:
        try:
            yield pool
        except BaseException:
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _begin(scratch: str) -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the one that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = scratch


def check_source(
    source: Source,
    settings: MatrixSettings,
    report: Callable[[str], None] = lambda line: None,
) -> list[MatrixRow]:
    """Check one drafter in every precision."""
    try:
        loaded, case = _load(source)
        context = settings.max_context
        if case is not None:
            check_width(case, loaded.spec)
            context = max(context, context_of(case, loaded.spec))
    except DraftrtError as error:
        return [
            MatrixRow(name=source.name, precision=precision, error=error)
            for precision in settings.precisions
        ]
    rows = []
    for precision in settings.precisions:
        report(f"{source.name}: {precision.value}")
        started = perf_counter()
        with temporary_folder("matrix") as folder:
            try:
                bundle = _export(loaded, folder, precision, context)
                parity = check_parity(bundle.path, num_rounds=settings.num_rounds)
                record = None if case is None else _against_record(case, bundle)
            except DraftrtError as error:
                rows.append(MatrixRow(name=source.name, precision=precision, error=error))
                continue
        rows.append(
            MatrixRow(
                name=source.name,
                precision=precision,
                parity=parity,
                record=record,
                seconds=perf_counter() - started,
            )
        )
    return rows


def _load(source: Source) -> tuple[LoadedDrafter, GoldenCase | None]:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.validate.records.golden import case_target

    if source.case is None:
        assert source.draft is not None
        assert source.target is not None
        return load_drafter(source.draft, read_target(source.target, draft=source.draft)), None
    case = read_case(source.case, source.draft)
    return load_drafter(case.draft, case_target(case, source.target), **case.stated), case


def _export(loaded: LoadedDrafter, folder: Path, precision: Precision, context: int) -> Bundle:
    """Write a bundle of the draft graph alone, with every output: no target, no tokenizer."""
    from draftrt.export.models.signature import EXTRA_OUTPUTS
    from draftrt.export.options import ExportOptions
    from draftrt.export.write_graphs import write_draft_graph

    assert loaded.target is not None
    options = ExportOptions(precision=precision, max_context=context, extra_outputs=EXTRA_OUTPUTS)
    entry = write_draft_graph(loaded, folder, options, lambda line: None)
    manifest = Manifest(
        drafter=loaded.spec,
        target=loaded.target.spec,
        graphs={"draft": entry},
        files=hash_files(folder),
        inputs={},
        tools=tool_versions(),
        command=command_line(),
        created=now(),
    )
    write_manifest(folder, manifest)
    return Bundle.open(folder)


def _against_record(case: GoldenCase, bundle: Bundle) -> dict[str, Finding | Measure]:
    """Draft the recorded rounds with the graph, and in bf16 with PyTorch's own kernels too."""
    from draftrt.export.check.reference import module_from_bundle
    from draftrt.export.graph.float32 import runnable
    from draftrt.runtime.backends.ort import OrtSession
    from draftrt.runtime.decoding.drafter import DraftSession
    from draftrt.validate.parity.variants import run_signature

    entry, spec = bundle.graph("draft"), bundle.drafter()
    with (
        runnable(bundle.file(entry.file), entry.precision) as (path, _),
        OrtSession(path, run_signature(entry)) as session,
    ):
        draft = DraftSession(spec, session).draft
        if entry.precision is Precision.FP32:
            limit = golden_limit(case.name, case.tolerance)
            return dict(compare_case(case, draft, spec, limit))
        found = _named("", compare_rounded(case, draft, spec, entry.precision))
    if entry.precision is Precision.BF16:  # the twin rounds weights alone, PyTorch what is computed
        rounded = drafter_of(module_from_bundle(bundle), Precision.BF16, entry.max_context)
        found |= _named(IN_BF16, compare_rounded(case, rounded, spec, Precision.BF16))
    return found


def _named(where: str, found: Sequence[Finding | Measure]) -> dict[str, Finding | Measure]:
    return {
        where + (f"{one.output} {one.name}" if isinstance(one, Measure) else one.output): one
        for one in found
    }


CONFIG = "config.json"


def sources_of(
    cases: Sequence[Path], drafts: Sequence[Path], target: Path | None
) -> tuple[list[Source], list[Path]]:
    """Return the cases, and the checkpoints that no case was made from.

    A case that holds only the hashes of its drafter takes the checkpoint that has them. It is read
    and checked with the case: a checkpoint whose config is the recorded one and whose weights are
    not is taken too, to be refused with both hashes.

    Args:
        cases: folders of golden cases.
        drafts: checkpoints.
        target: the target of all of them.

    Returns:
        Sources of the cases, in their order, and the checkpoints left over, in theirs.
    """
    found, taken = [], set()
    for case in cases:
        draft = _checkpoint_of(case, drafts)
        found.append(Source(case=case, draft=draft, target=target))
        taken.add(draft)
    return found, [draft for draft in drafts if draft not in taken]


def _checkpoint_of(case: Path, drafts: Sequence[Path]) -> Path | None:
    try:
        hashes = recorded_hashes(case)
    except RecordError:  # told as that case's result, when it is read as a whole
        return None
    near = [draft for draft in drafts if _has(draft, hashes, CONFIG)] if hashes else []
    if len(near) < 2:
        return near[0] if near else None
    same = [draft for draft in near if all(_has(draft, hashes, name) for name in hashes)]
    return (same or near)[0]


def _has(draft: Path, hashes: Mapping[str, str], name: str) -> bool:
    path = draft / name
    return path.is_file() and sha256_of(path) == hashes.get(name)
