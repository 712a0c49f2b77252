"""Target cases against the exported graph on ONNX Runtime.

The graph is made by the export that users run and fed through the runtime's own target. Prompts go
in whole, token by token and in other splits; rounds are verified and rolled back, with exactly the
recorded rows and with rows repeated up to the session's block.

Every row of a call is asked for in that one call: the sizes of a call are open in the file that
ONNX Runtime runs, so it is opened with a wider table than a bundle's, in which a call answers for
all of its rows. No call is made twice, and what a call commits is committed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import require
from draftrt.compare.arrays import Finding, compare_choices, compare_top, compare_values
from draftrt.errors import DraftrtError, SpecError
from draftrt.files import temporary_folder
from draftrt.runtime.targets.base import TargetRows
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.signature import COMMIT_ROWS, DimRange, Signature
from draftrt.spec import Precision
from draftrt.tolerances import Limit, TargetLimits, target_limits
from draftrt.validate.records.target_cases import (
    RecordedPrompt,
    RecordedRound,
    RecordedSession,
    TargetCase,
    read_target_case,
)

SPLITS = (16, 63, 64, 65)  # rows a call, around the blocks that graphs compute in
MOST_ROWS = 1024  # of a call
MOST_LOGIT_BYTES = 256 << 20  # of a call that answers for all of its rows
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """How target cases are checked.

    Attributes:
        splits: random ways to cut each prompt into calls.
        seed: of these.
        logits: largest difference of a logit; None: as the record says.
        features: the same of a feature.
        margin: lead above which the largest logit must be the recorded one.
    """

    splits: int = 8
    seed: int = 0
    logits: float | None = None
    features: float | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCaseReport:
    """What the check of one target case showed.

    Attributes:
        name: the case's folder name.
        num_prompts: recorded prompts.
        num_rounds: recorded rounds.
        num_ways: ways in which each prompt was fed.
        limits: what may differ.
        findings: ``p63, 16 a call, logits`` or ``s0.r3, padded, argmax`` to finding.
        error: why it could not be checked; None when it was.
    """

    name: str
    num_prompts: int = 0
    num_rounds: int = 0
    num_ways: int = 0
    limits: TargetLimits
    findings: Mapping[str, Finding] = field(default_factory=dict)
    error: DraftrtError | None = None

    @property
    def verdict(self) -> str:
        """``same``, ``different`` or ``unchecked``."""
        if self.error is not None:
            return "unchecked"
        return "same" if all(self.findings.values()) else "different"


def check_target_cases(
    folders: Sequence[Path],
    options: TargetOptions,
    target: Path | None = None,
    report: Report = lambda line: None,
) -> Iterator[TargetCaseReport]:
    """Check target cases one by one; one that cannot be checked does not stop the others.

    Args:
        folders: the cases.
        options: see `TargetOptions`.
        target: checkpoint of a case that does not hold its own.
        report: gets one line a step.
    """
    wished = {"logits": options.logits, "features": options.features, "margin": options.margin}
    for folder in folders:
        name, limits = folder.resolve().name, target_limits(None, **wished)
        try:
            case = read_target_case(folder, target)
            limits = target_limits(case.stated, **wished)
            with exported_target(case, report) as opened:
                findings, num_ways = _check(case, opened, options, limits, report)
        except DraftrtError as error:
            yield TargetCaseReport(name=name, limits=limits, error=error)
            continue
        yield TargetCaseReport(
            name=name,
            num_prompts=len(case.prompts),
            num_rounds=sum(len(one.rounds) for one in case.sessions),
            num_ways=num_ways,
            limits=limits,
            findings=findings,
        )


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """A target's graph, open, which answers for all rows of a call.

    Attributes:
        session: on ONNX Runtime.
        context: rows of its caches.
        asked: rows of a call of the graph as a bundle has it.
    """

    session: Any
    context: int
    asked: int

    def target(self, least_rows: int = 1) -> GraphTarget:
        """Return the runtime's target over it; see `GraphTarget`."""
        return GraphTarget(self.session, self.context, least_rows=least_rows)


@contextmanager
def exported_target(case: TargetCase, report: Report) -> Iterator[OpenedTarget]:
    """Export a case's target into a folder that is gone at the end, and open its graph.

    Raises:
        DraftrtError: the target cannot be read or exported, or does not fit the case.
    """
    from draftrt.export.checkpoint.decoder import read_decoder
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.options import ExportOptions
    from draftrt.export.weights.placement import place_target
    from draftrt.export.weights.storage import weight_files
    from draftrt.runtime.backends.ort import OrtSession

    require("torch", "onnx", "onnxruntime", what="an export")
    model = read_target(case.target)
    decoder = read_decoder(model)
    _check_fit(case, decoder.num_layers, decoder.hidden_size, decoder.vocab_size)
    context = case.longest + max((one.max_rows for one in case.sessions), default=1)
    options = ExportOptions(precision=Precision.FP32, max_context=context)
    with temporary_folder("golden") as folder:
        with weight_files(folder, options.weights) as files:
            weights = place_target(decoder, case.target, options, context, files)
            from draftrt.export.write_graphs import write_target_graph

            entry = write_target_graph(
                decoder, folder, case.taps, options, report, context, weights
            )
        wide, asked = _wide(entry.signature, context), entry.signature.dimensions["S"].max
        with OrtSession(folder / entry.file, wide) as session:
            yield OpenedTarget(session, context, asked)


def _check_fit(case: TargetCase, num_layers: int, hidden_size: int, vocab_size: int) -> None:
    beyond = [tap for tap in case.taps if not -1 <= tap < num_layers]
    width = len(case.taps) * hidden_size
    widths = {one.features.shape[1] for one in case.prompts}
    widths |= {one.features.shape[1] for one in case.sessions}
    problems = [f"taps layers {beyond}, the target has layers 0..{num_layers - 1}"] * bool(beyond)
    if case.taps and widths != {width}:
        problems.append(f"has features of {sorted(widths)}, the target of {width}")
    columns = {one.logits.shape[1] for one in case.prompts}
    if columns - {vocab_size}:
        problems.append(f"has logits of {sorted(columns)} ids, the target of {vocab_size}")
    largest = [int(one.prompt_ids.max()) for one in case.sessions]
    largest += [int(a_round.ids.max()) for one in case.sessions for a_round in one.rounds]
    if max(largest, default=0) >= vocab_size:
        problems.append(f"has id {max(largest)}, the target ids below {vocab_size}")
    if problems:
        raise SpecError(
            f"{case.path}: {'; '.join(problems)}", hint="give the target that was recorded"
        )


def _wide(signature: Signature, context: int) -> Signature:
    """Return the table of a graph with as many rows a call as memory allows, all asked for."""
    columns = next(int(one.shape[2]) for one in signature.outputs if one.name == "logits")
    has_states = any(one.name == COMMIT_ROWS for one in signature.inputs)
    largest = signature.dimensions["R"].max if has_states else MOST_ROWS  # of one block of states
    most = max(1, min(largest, context, MOST_LOGIT_BYTES // (4 * columns)))
    rows = DimRange(min=1, opt=1, max=most)
    return replace(signature, dimensions={**signature.dimensions, "R": rows, "S": rows})


def _check(
    case: TargetCase,
    opened: OpenedTarget,
    options: TargetOptions,
    limits: TargetLimits,
    report: Report,
) -> tuple[dict[str, Finding], int]:
    findings: dict[str, Finding] = {}
    target, num_ways = opened.target(), 0
    for number, prompt in enumerate(case.prompts):
        ways = dict(_ways(len(prompt.ids), opened, options, number))
        num_ways = max(num_ways, len(ways) + 1)
        name = f"p{len(prompt.ids)}"
        report(f"{name}: {len(ways) + 1} ways")
        for way, sizes in ways.items():
            answers = _fed(target, prompt, sizes)
            findings |= _judged(f"{name}, {way}", prompt, answers, limits, is_step=way == STEP)
        findings |= _prefilled(f"{name}, as a prompt", target, prompt, limits)
    for index, session in enumerate(case.sessions):
        report(f"s{index}: {len(session.rounds)} rounds")
        for way, least in (("exact", 1), ("padded", session.max_rows)):
            found = _played(session, opened.target(least), limits)
            findings |= {f"s{index}.{name}, {way}, {key}": one for (name, key), one in found}
    return findings, num_ways


WHOLE, STEP = "whole", "1 a call"


def _ways(
    length: int, opened: OpenedTarget, options: TargetOptions, number: int
) -> Iterator[tuple[str, list[int]]]:
    """Yield the ways to feed a prompt, each by its name and the rows of its calls."""
    most = opened.session.signature.dimensions["R"].max
    yield WHOLE, _calls(length, most)
    if length == 1:
        return
    yield STEP, _calls(length, 1)
    for rows in (*SPLITS, opened.asked):
        if rows < min(length, most):
            yield f"{rows} a call", _calls(length, rows)
    rng = np.random.default_rng([options.seed, number])
    for index in range(options.splits):
        sizes: list[int] = []
        while (left := length - sum(sizes)) > 0:  # of one row as likely as of hundreds
            drawn = int(np.exp(rng.uniform(0, np.log(length + 1))))
            sizes.append(min(max(drawn, 1), left, most))
        yield f"random split {index}", sizes


def _calls(length: int, rows: int) -> list[int]:
    return [min(rows, length - start) for start in range(0, length, rows)]


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a target says about a prompt: every row's choice, logits and features of some."""

    argmax: NDArray[np.int64]
    logits: NDArray[np.float32]
    features: NDArray[np.float32]


def _fed(target: GraphTarget, prompt: RecordedPrompt, sizes: Sequence[int]) -> _Answers:
    """Feed a prompt in calls of these sizes, every row asked for."""
    target.rollback(0)
    chosen, start = [], 0
    logits = np.zeros(prompt.logits.shape, np.float32)
    features = np.zeros(prompt.features.shape, np.float32)
    for size in sizes:
        rows = target.verify(prompt.ids[start : start + size], want_logits=True)
        assert rows.logits is not None
        here = (prompt.rows >= start) & (prompt.rows < start + size)
        logits[here] = rows.logits[prompt.rows[here] - start]
        features[here] = rows.features[0, prompt.rows[here] - start]
        chosen.append(rows.token_ids)
        start += size
    return _Answers(np.concatenate(chosen), logits, features)


def _judged(
    name: str, prompt: RecordedPrompt, got: _Answers, limits: TargetLimits, *, is_step: bool
) -> dict[str, Finding]:
    found = {
        "argmax": compare_choices(prompt.argmax, prompt.margin, got.argmax, limits.margin),
        "logits": compare_values("logits", prompt.logits, got.logits, _limit(limits.logits)),
        "features": compare_values(
            "features", prompt.features, got.features, _limit(limits.features)
        ),
    }
    if is_step:
        for key, want in prompt.steps.items():
            here, most = getattr(got, key), getattr(limits, key)
            found[f"step_{key}"] = compare_values(key, want, here, _limit(most))
    return {f"{name}, {key}": one for key, one in found.items()}


def _prefilled(
    name: str, target: GraphTarget, prompt: RecordedPrompt, limits: TargetLimits
) -> dict[str, Finding]:
    """Feed a prompt as a decoder does: all features, the choice behind its last row alone."""
    target.rollback(0)
    rows, last = target.prefill(prompt.ids, want_logits=True), len(prompt.ids) - 1
    features = rows.features[0, prompt.rows]
    found = {
        "argmax": compare_choices(
            prompt.argmax[last:], prompt.margin[last:], rows.token_ids, limits.margin
        ),
        "features": compare_values("features", prompt.features, features, _limit(limits.features)),
    }
    if last in prompt.rows:
        want = prompt.logits[prompt.rows == last]
        found["logits"] = compare_values("logits", want, rows.logits, _limit(limits.logits))
    return {f"{name}, {key}": one for key, one in found.items()}


def _played(
    session: RecordedSession, target: GraphTarget, limits: TargetLimits
) -> Iterator[tuple[tuple[str, str], Finding]]:
    """Play a session's rounds, rolled back as recorded; yield (place, what) and finding."""
    target.rollback(0)
    rows = target.prefill(session.prompt_ids, want_logits=True)
    yield (
        ("prefill", "logits"),
        compare_top(
            "logits",
            session.top_ids[None],
            session.top_values[None],
            rows.logits,
            _limit(limits.logits),
        ),
    )
    last = rows.features[0, len(session.prompt_ids) - len(session.features) :]
    yield (
        ("prefill", "features"),
        compare_values("features", session.features, last, _limit(limits.features)),
    )
    for index, one in enumerate(session.rounds):
        start = target.length
        rows = target.verify(one.ids, want_logits=True)
        for key, finding in _round_findings(one, rows, limits).items():
            yield (f"r{index}", key), finding
        target.rollback(start + one.accepted + 1)


def _round_findings(
    one: RecordedRound, rows: TargetRows, limits: TargetLimits
) -> dict[str, Finding]:
    lead = (
        one.top_values[:, 0] - one.top_values[:, 1]
        if one.top_values.shape[1] > 1
        else np.full(len(one.ids), np.inf)
    )
    return {
        "argmax": compare_choices(one.argmax, lead, rows.token_ids, limits.margin),
        "logits": compare_top(
            "logits", one.top_ids, one.top_values, rows.logits, _limit(limits.logits)
        ),
        "features": compare_values(
            "features", one.features, rows.features[0], _limit(limits.features)
        ),
    }


def _limit(atol: float) -> Limit:
    return Limit(atol=atol, reason="ten times what float32 paths of the recorder differ by")
