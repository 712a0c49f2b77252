"""An exported graph against the PyTorch module it came from, through Polygraphy's comparator.

Both are rebuilt from the bundle alone and draft the same rounds with caches of their own: a short
and a long sequence, with none, some and all of the drafts accepted. A graph that is there a second
time with the rows of its caches open is compared as well, each sequence with caches just large
enough. Products with int4 and int8 weights are compared as the graph writes them, and then once
more as the runtime runs them, with limits of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.backends import BACKENDS, ONNXRUNTIME, require
from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.compare.arrays import Finding
from draftrt.compare.measures import Judge, Measure
from draftrt.errors import BackendError
from draftrt.onnx_session import onnxruntime_errors
from draftrt.spec import Precision
from draftrt.tolerances import INT8_KERNELS, Limit, limit_of
from draftrt.validate.parity.variants import Subject, reference_of, subjects_of
from draftrt.validate.rounds.plan import (
    DEFAULT_ROUNDS,
    PlannedRound,
    feeds_of,
    plan_rounds,
    windows_beyond,
    windows_of,
)
from draftrt.validate.rounds.runners import RoundRunner, SessionRounds

if TYPE_CHECKING:
    from draftrt.export.manifest_graphs import FileFindings

REFERENCE = "pytorch"
AS_RUN = " as run"  # appended to an output's name


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """What the comparison of a bundle showed.

    Attributes:
        bundle: its folder.
        backend: what ran the graph.
        precision: element type of the graph.
        rounds: the rounds compared.
        findings: for each round output to finding.
        shares: output to its ids over all rounds; its verdict counts where limits allow a flip.
        measures: what all rounds together say about choices, distributions and directions.
        limits: output to what it may differ by.
        windows: sliding windows of the drafter's layers.
        files: each of the graph's files against the nodes and rotary tables that the manifest's
            facts give.
        notes: what the comparison could not show.
    """

    bundle: Path
    backend: str
    precision: Precision
    rounds: Sequence[PlannedRound]
    findings: Sequence[Mapping[str, Finding]]
    shares: Mapping[str, Finding]
    measures: Sequence[Measure]
    limits: Mapping[str, Limit]
    files: Sequence[FileFindings]
    windows: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the files are the facts' graphs, and all that was compared is within its limit.

        A round without an output, or a comparison on ONNX Runtime without a measure, is none.
        """
        each = all(named and all(named.values()) for named in self.findings)
        whole = all(self.shares.values()) and all(self.measures)
        is_measured = bool(self.measures) or self.backend != ONNXRUNTIME
        is_there = is_measured and len(self.findings) == len(self.rounds) > 0
        return each and whole and is_there and all(self.files)


def check_parity(
    path: Path | str, *, backend: str = ONNXRUNTIME, num_rounds: int = DEFAULT_ROUNDS
) -> ParityReport:
    """Compare the draft graph of a bundle with its PyTorch module, round by round.

    Args:
        path: the bundle.
        backend: what runs the graph, one of `BACKENDS`.
        num_rounds: rounds of each of the two sequences.

    Raises:
        BundleError: no bundle there, its files changed, or they are not what the manifest states.
        SpecError: the manifest states facts that no drafter can have.
        BackendError: a package is missing, or no plan of the bundle runs on this machine.
    """
    if backend not in BACKENDS:
        raise BackendError(f"no backend {backend!r}, there is {list(BACKENDS)}")
    bundle = Bundle.open(path, verify=Verify.ALL)
    spec, entry = bundle.drafter(), bundle.graph("draft")
    require("polygraphy", what="parity")
    from draftrt.export.manifest_graphs import compare_with_facts

    files = compare_with_facts(bundle, "draft")
    planned = plan_rounds(spec, entry.max_context, num_rounds)
    with subjects_of(bundle, backend) as subjects:
        judges = {
            kind: _judge(bundle, backend, [one for one in subjects if one.as_run is kind])
            for kind in dict.fromkeys(subject.as_run for subject in subjects)
        }
        rounds: list[PlannedRound] = []
        findings: list[dict[str, Finding]] = []
        for subject in subjects:
            findings += _compare(bundle, subject, backend, planned, judges[subject.as_run])
            rounds += [replace(one, graph=subject.label) for one in planned]
    return ParityReport(
        bundle=bundle.path,
        backend=backend,
        precision=entry.precision,
        rounds=rounds,
        findings=findings,
        shares={name: one for judge in judges.values() for name, one in judge.shares().items()},
        measures=[one for judge in judges.values() for one in judge.measures()],
        limits={
            name + judge.suffix: one
            for judge in judges.values()
            for name, one in judge.limits.items()
        },
        files=files,
        windows=windows_of(spec),
        notes=(*_notes(bundle, subjects, rounds), *(one.note for one in files if one.note)),
    )


def _notes(
    bundle: Bundle, subjects: Sequence[Subject], rounds: Sequence[PlannedRound]
) -> tuple[str, ...]:
    """Return what a comparison could not show."""
    rows = bundle.graph("draft").max_context
    beyond = [
        f"sliding window {window}: the caches of {rows} rows never reach past it, so its edge was "
        "not tried; export with a larger --max-context"
        for window in windows_beyond(bundle.drafter(), rounds)
    ]
    return (*(subject.note for subject in subjects if subject.note), *beyond)


def _judge(bundle: Bundle, backend: str, subjects: Sequence[Subject]) -> Judge:
    """Return what judges subjects that run in one way."""
    spec, precision = bundle.drafter(), bundle.graph("draft").precision
    names = [tensor.name for subject in subjects for tensor in subject.outputs]
    where, suffix = (INT8_KERNELS, AS_RUN) if subjects[0].as_run else (backend, "")
    return Judge(
        {name: limit_of(where, precision, name) for name in dict.fromkeys(names)},
        is_sequential=spec.markov is not None or spec.selector is not None,
        suffix=suffix,
    )


def _compare(
    bundle: Bundle,
    subject: Subject,
    backend: str,
    rounds: Sequence[PlannedRound],
    judge: Judge,
) -> list[dict[str, Finding]]:
    from polygraphy.comparator import Comparator
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    spec, entry = bundle.drafter(), bundle.graph("draft")
    with ExitStack() as stack:
        stack.enter_context(G_LOGGER.verbosity(G_LOGGER.CRITICAL))
        stack.enter_context(onnxruntime_errors(f"{bundle.path}: its draft graph"))
        graph = SessionRounds(stack.enter_context(subject.open()), spec.block_size)
        common = (subject.signature, subject.outputs, spec.block_size)
        runners = [
            RoundRunner(REFERENCE, *common, lambda: reference_of(bundle, backend)),
            RoundRunner(backend, *common, lambda: graph),
        ]
        try:
            feeds = feeds_of(spec, entry, rounds)
            run = Comparator.run(runners, data_loader=feeds, streaming=True)
            results = Comparator.compare_accuracy(run, compare_func=judge)
        except PolygraphyException as error:
            raise BackendError(f"{bundle.path}: Polygraphy: {error}") from error
    findings: list[dict[str, Finding]] = results[0][REFERENCE, backend]
    return findings
