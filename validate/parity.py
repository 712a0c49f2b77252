"""The exported graph against the PyTorch module it came from, through Polygraphy's comparator.

Both are rebuilt from the bundle alone and draft the same rounds with caches of their own: a short
and a long sequence, with none, some and all of the drafts accepted. A graph that is there a second
time with the rows of its caches open is compared as well, each sequence with caches just large
enough. Products with int4 and int8 weights are compared as the graph writes them, and then once
more as the runtime runs them, with limits of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle, GraphEntry
from draftrt.errors import BackendError
from draftrt.quantization import PRODUCTS, Scheme
from draftrt.spec import DrafterSpec, Precision
from draftrt.validate.compare import Finding, compare_ids, compare_values
from draftrt.validate.reference import ReferenceRounds
from draftrt.validate.runners import PolygraphyRounds, RoundRunner, onnxruntime_runner, require
from draftrt.validate.tolerances import IDS, INT8_KERNELS, Limit, limit_of

BACKEND = "onnxruntime"
SHORT = 5  # context of the short sequence's first round
DEFAULT_ROUNDS = 4
AS_RUN = " as run"  # appended to an output's name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """One round to compare.

    Attributes:
        context_length: rows committed before it; 0 starts a sequence.
        new_rows: T, rows of new context.
        capacity: rows of the caches.
        graph: ONNX file.
    """

    context_length: int
    new_rows: int
    capacity: int
    graph: str = ""


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
        limits: output to what it may differ by.
    """

    bundle: Path
    backend: str
    precision: Precision
    rounds: Sequence[PlannedRound]
    findings: Sequence[Mapping[str, Finding]]
    shares: Mapping[str, Finding]
    limits: Mapping[str, Limit]

    @property
    def is_same(self) -> bool:
        """Whether every output of every round is within its limit."""
        each = all(all(named.values()) for named in self.findings)
        return each and all(self.shares.values()) and len(self.findings) == len(self.rounds) > 0


def check_parity(path: Path | str, *, num_rounds: int = DEFAULT_ROUNDS) -> ParityReport:
    """Compare the draft graph of a bundle with its PyTorch module, round by round.

    Args:
        path: the bundle.
        num_rounds: rounds of each of the two sequences.

    Raises:
        BundleError: no bundle there, or its files changed.
        BackendError: a package is missing, or the graph's precision has no kernels here.
    """
    bundle = Bundle.open(path)
    spec, entry = bundle.drafter(), bundle.graph("draft")
    if entry.precision is Precision.BF16:
        raise BackendError(
            f"{bundle.path}: ONNX Runtime has no bfloat16 kernels on the CPU, and this graph is "
            "bf16",
            hint="compare an fp32 or fp16 export of the same drafter; a bf16 export was compared "
            "when it was made, through its float32 twin",
        )
    require("polygraphy", "onnxruntime")
    outputs = entry.signature.outputs
    limits = {t.name: limit_of(BACKEND, entry.precision, t.name) for t in outputs}
    is_sequential = spec.markov is not None or spec.selector is not None
    judges = [Judge(limits, is_sequential=is_sequential)]
    rounds, findings = [], []
    for file in filter(None, (entry.file, entry.flexible)):
        planned = plan_rounds(spec, entry.max_context, num_rounds)
        if file == entry.file:
            planned = [replace(one, capacity=entry.max_context) for one in planned]
        findings += _compare(bundle, spec, file, planned, judges[0])
        rounds += [replace(one, graph=file) for one in planned]
    if has_int8_kernels(entry):
        loose = {t.name: limit_of(INT8_KERNELS, entry.precision, t.name) for t in outputs}
        judges.append(Judge(loose, is_sequential=is_sequential, suffix=AS_RUN))
        findings += _compare(bundle, spec, file, planned, judges[1])
        rounds += [replace(one, graph=file) for one in planned]
    return ParityReport(
        bundle=bundle.path,
        backend=BACKEND,
        precision=entry.precision,
        rounds=rounds,
        findings=findings,
        shares={name: one for judge in judges for name, one in judge.shares().items()},
        limits={name + judge.suffix: one for judge in judges for name, one in judge.limits.items()},
    )


def has_int8_kernels(entry: GraphEntry) -> bool:
    """Return whether the runtime rounds activations to int8 to multiply with weights of a graph."""
    quantised = (entry.quantization.get(part) for part in PRODUCTS)
    return any(scheme in (Scheme.INT4, Scheme.INT8) for scheme in quantised)


def plan_rounds(spec: DrafterSpec, max_context: int, num_rounds: int) -> list[PlannedRound]:
    """Return the rounds of a short sequence, then of one that fills all rows of the caches.

    After a sequence's first round the number of new rows goes through one (no draft was
    accepted), half the drafts and all of them; rounds that would not fit are left out. The
    capacity of each is what its sequence needs.
    """
    drafts, room = spec.num_draft_tokens, max_context - spec.block_size
    wanted = list(islice(cycle((1, 1 + drafts // 2, 1 + drafts)), num_rounds - 1))
    while wanted and sum(wanted) >= room:
        wanted.pop()
    left = room - sum(wanted)
    return [
        PlannedRound(
            context_length=sum(rows[:index]),
            new_rows=count,
            capacity=sum(rows) + spec.block_size,
        )
        for rows in [[first, *wanted] for first in sorted({min(SHORT, left), left})]
        for index, count in enumerate(rows)
    ]


@dataclass(slots=True)
class Judge:
    """Compares what two runners made of one round; called by Polygraphy's comparator.

    A single 16-bit flip must not fail a round of seven drafts, so ids that need not all agree are
    only counted here and judged over all rounds (`shares`). In a sequential head every draft is
    conditioned on the one before it: rows behind the first flip say nothing and are left out.

    Attributes:
        limits: output to what it may differ by.
        is_sequential: whether a draft depends on the draft before it.
        suffix: appended to the outputs' names in what is found.
    """

    limits: Mapping[str, Limit]
    is_sequential: bool
    suffix: str = ""
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __call__(
        self, want: Mapping[str, NDArray[Any]], got: Mapping[str, NDArray[Any]]
    ) -> dict[str, Finding]:
        """Return output to finding for one round."""
        rows = self._comparable_rows(want["draft_ids"], got["draft_ids"])
        findings = {}
        for name, limit in self.limits.items():
            a, b = want[name], got[name]
            if a.shape == b.shape and name in _ROW_OUTPUTS:
                a, b = a[:, :rows], b[:, :rows]
            if name not in IDS:
                findings[name] = compare_values(name, a, b, limit)
            elif limit.agreement == 1.0:
                findings[name] = compare_ids(name, a, b, limit)
            else:
                counted = compare_ids(name, a, b, Limit(agreement=0.0, reason=limit.reason))
                equal, total = self._counts.get(name, (0, 0))
                self._counts[name] = (equal + counted.num_equal, total + counted.num_compared)
                findings[name] = counted
        return {name + self.suffix: one for name, one in findings.items()}

    def shares(self) -> dict[str, Finding]:
        """Return the verdict over all rounds on ids that need not all agree."""
        return {
            name + self.suffix: self._share(name, *counts) for name, counts in self._counts.items()
        }

    def _share(self, name: str, equal: int, total: int) -> Finding:
        share, least = equal / max(total, 1), self.limits[name].agreement
        return Finding(
            output=name,
            is_same=share >= least,
            num_equal=equal,
            num_compared=total,
            problem="" if share >= least else f"{equal} of {total} agree, expected {least:.0%}",
        )

    def _comparable_rows(self, want: NDArray[Any], got: NDArray[Any]) -> int:
        exact = self.limits["draft_ids"].agreement == 1.0
        if exact or not self.is_sequential or want.shape != got.shape or (want == got).all():
            return int(want.shape[-1])
        return int(np.flatnonzero(want[0] != got[0])[0]) + 1


_ROW_OUTPUTS = (
    "draft_ids",
    "draft_vocab_ids",
    "candidates",
    "candidate_ids",
    "candidate_scores",
    "logits",
    "confidence",
)


def _compare(
    bundle: Bundle,
    spec: DrafterSpec,
    file: str,
    rounds: Sequence[PlannedRound],
    judge: Judge,
) -> list[dict[str, Finding]]:
    from polygraphy.comparator import Comparator
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    from draftrt.export.reference import module_from_bundle

    entry = bundle.graph("draft")
    capacities = [one.capacity for one in rounds if one.context_length == 0]

    def reference() -> ReferenceRounds:
        return ReferenceRounds(module_from_bundle(bundle), entry.precision, entry.max_context)

    with ExitStack() as stack:
        stack.enter_context(G_LOGGER.verbosity(G_LOGGER.CRITICAL))
        graph = onnxruntime_runner(bundle.file(file), as_run=judge.suffix == AS_RUN)
        stack.enter_context(graph)
        runners = [
            RoundRunner("pytorch", entry.signature, spec.block_size, reference),
            RoundRunner(
                BACKEND,
                entry.signature,
                spec.block_size,
                lambda: PolygraphyRounds(graph, entry.signature, capacities),
            ),
        ]
        try:
            run = Comparator.run(runners, data_loader=_feeds(spec, entry, rounds), streaming=True)
            results = Comparator.compare_accuracy(run, compare_func=judge)
        except PolygraphyException as error:
            raise BackendError(f"{bundle.path}: Polygraphy: {error}") from error
    findings: list[dict[str, Finding]] = results[0]["pytorch", BACKEND]
    return findings


def _feeds(
    spec: DrafterSpec, entry: GraphEntry, rounds: Sequence[PlannedRound]
) -> Iterator[Mapping[str, Any]]:
    from draftrt.export.signature import round_feeds, walk_to_compare

    rng = np.random.default_rng(0)
    walk = walk_to_compare(entry.signature, entry.precision)
    for one in rounds:
        length = one.context_length
        yield round_feeds(spec, rng, new_rows=one.new_rows, context_length=length, walk=walk)
