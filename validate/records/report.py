"""Golden cases and the matrix as text and JSON, and the errors that give the exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.compare.arrays import Finding, worst_of
from draftrt.compare.measures import Measure
from draftrt.errors import DraftrtError, ParityError
from draftrt.signature import DRAFT_IDS
from draftrt.validate.compare.tables import limited, render
from draftrt.validate.parity.parity import ParityReport
from draftrt.validate.parity.report import as_json as parity_json
from draftrt.validate.parity.report import problems_of
from draftrt.validate.records.cases import ID_ARRAYS
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.golden import CaseReport
from draftrt.validate.records.matrix import IN_BF16, MatrixRow
from draftrt.validate.records.target_golden import TargetCaseReport


def golden_text(reports: Sequence[CaseReport], backends: Sequence[str]) -> list[str]:
    """Return one table line a case, then what is wrong with those that are not the same."""
    rows = [["case", "rounds", *backends, "limit", "verdict"]]
    for one in reports:
        cells = [_cell(one.findings[name]) if name in one.findings else "-" for name in backends]
        rows.append(
            [one.name, str(one.num_rounds), *cells, f"{one.limit.atol:.0e}", one.verdict],
        )
    return [*render(rows), *(line for one in reports for line in _golden_details(one))]


def golden_json(reports: Sequence[CaseReport]) -> dict[str, Any]:
    """Return the reports as JSON data."""
    return {"cases": [_case_json(one) for one in reports]}


TARGET_HEADING = [
    "target case",
    "prompts, ways",
    "rounds",
    "argmax",
    "logits",
    "features",
    "verdict",
]


def target_text(reports: Sequence[TargetCaseReport]) -> list[str]:
    """Return one table line a target case, then what is wrong with those not the same.

    Values are the largest difference, behind it what is allowed.
    """
    rows = [TARGET_HEADING, *map(_target_cells, reports)]
    return [*render(rows), *(line for one in reports for line in _target_details(one))]


def target_json(reports: Sequence[TargetCaseReport]) -> list[dict[str, Any]]:
    """Return the reports as JSON data, to stand beside those of drafter cases."""
    return [
        {
            "case": one.name,
            "kind": "target",
            "verdict": one.verdict,
            "prompts": one.num_prompts,
            "rounds": one.num_rounds,
            "ways": one.num_ways,
            "atol": {"logits": one.limits.logits, "features": one.limits.features},
            "margin": one.limits.margin,
            "error": None if one.error is None else str(one.error),
            "findings": {name: finding.to_json() for name, finding in one.findings.items()},
        }
        for one in reports
    ]


def _target_cells(one: TargetCaseReport) -> list[str]:
    if one.error is not None:
        return [one.name, *["-"] * 5, one.verdict]
    found = {"argmax": [], "logits": [], "features": []}  # type: dict[str, list[Finding]]
    for name, finding in one.findings.items():
        found[name.rpartition(", ")[2].removeprefix("step_")].append(finding)
    choices = found["argmax"]
    equal, compared = (
        sum(finding.num_equal for finding in choices),
        sum(finding.num_compared for finding in choices),
    )
    worst = [
        f"{max((finding.worst for finding in found[key]), default=0.0):.1e}, {allowed:.0e}"
        for key, allowed in (("logits", one.limits.logits), ("features", one.limits.features))
    ]
    fed = f"{one.num_prompts}, {one.num_ways}"
    return [one.name, fed, str(one.num_rounds), f"{equal} of {compared}", *worst, one.verdict]


def _target_details(one: TargetCaseReport) -> list[str]:
    if one.error is not None:
        return [f"{one.name}: {one.error.message}"]
    lines = [f"{name} {finding.problem}" for name, finding in worst_of(one.findings)]
    return [f"{one.name}: {line}" for line in limited(lines, MAX_DETAILS)]


def golden_failure(reports: Sequence[CaseReport | TargetCaseReport]) -> DraftrtError | None:
    """Return the error to end with: different goes before unchecked; None when all are the same."""
    different = [one.name for one in reports if one.verdict == "different"]
    if different:
        return ParityError(
            f"{len(different)} of {len(reports)} cases differ: {', '.join(different)}",
            hint="docs/accuracy.md says how to find where",
        )
    unchecked = [one for one in reports if one.error is not None]
    if len(unchecked) == 1 and unchecked[0].error is not None:
        return unchecked[0].error
    if unchecked:
        names = ", ".join(one.name for one in unchecked)
        return RecordError(
            f"{len(unchecked)} of {len(reports)} cases could not be checked: {names}"
        )
    return None


def _cell(findings: Mapping[str, Finding]) -> str:
    arrays = (*ID_ARRAYS, "greedy")
    ids = [one for name, one in findings.items() if name.split(".")[1] in arrays]
    values = [one for name, one in findings.items() if name.split(".")[1] not in arrays]
    equal, compared = (sum(getattr(one, n) for one in ids) for n in ("num_equal", "num_compared"))
    same = "same ids" if equal == compared else f"{equal} of {compared} ids"
    said = same if all(ids) else f"{sum(not one for one in ids)} id arrays differ"
    return f"{said}, {max((one.worst for one in values), default=0.0):.1e}"


def _golden_details(one: CaseReport) -> list[str]:
    if one.error is not None:
        return [f"{one.name}: {one.error.message}"]
    return [
        f"{one.name}: {line}"
        for backend, findings in one.findings.items()
        for line in limited(
            [f"{backend} {name} {finding.problem}" for name, finding in worst_of(findings)],
            MAX_DETAILS,
        )
    ]


def _case_json(one: CaseReport) -> dict[str, Any]:
    return {
        "case": one.name,
        "verdict": one.verdict,
        "rounds": one.num_rounds,
        "atol": one.limit.atol,
        "reason": one.limit.reason,
        "error": None if one.error is None else str(one.error),
        "backends": {
            backend: {name: finding.to_json() for name, finding in findings.items()}
            for backend, findings in one.findings.items()
        },
    }


MAX_DETAILS = 3
HEADING = [
    "drafter",
    "precision",
    "rounds",
    "context",
    "ids equal",
    "KL, nats",
    "1 - cosine",
    "as recorded",
    "s",
    "verdict",
]


def matrix_text(rows: Sequence[MatrixRow]) -> list[str]:
    """Return one table line a row, then notes and what is wrong with those that are not the same.

    ``ids equal``, ``KL`` and ``1 - cosine`` compare the graph with its own module; ``as recorded``
    says how many recorded ids a graph still drafts and, in bf16, how many PyTorch does.
    """
    notes = dict.fromkeys(note for row in rows if row.parity for note in row.parity.notes)
    return [
        *render([HEADING, *(_cells(row) for row in rows)]),
        *(f"note: {note}" for note in notes),
        *(line for row in rows for line in _matrix_details(row)),
    ]


def matrix_json(rows: Sequence[MatrixRow]) -> dict[str, Any]:
    """Return the rows as JSON data."""
    return {
        "rows": [
            {
                "drafter": row.name,
                "precision": row.precision.value,
                "verdict": row.verdict,
                "seconds": round(row.seconds, 2),
                "error": None if row.error is None else str(row.error),
                "parity": None if row.parity is None else parity_json(row.parity),
                "record": None
                if row.record is None
                else {name: one.to_json() for name, one in row.record.items()},
            }
            for row in rows
        ]
    }


def matrix_failure(rows: Sequence[MatrixRow]) -> DraftrtError | None:
    """Return the error to end with: different goes before unchecked; None when all are the same."""
    different = [f"{one.name} {one.precision.value}" for one in rows if one.verdict == "different"]
    if different:
        return ParityError(
            f"{len(different)} of {len(rows)} comparisons differ: {', '.join(different)}",
            hint="docs/accuracy.md says how to find where",
        )
    unchecked = [one for one in rows if one.verdict == "unchecked"]
    if unchecked and len({str(one.error) for one in unchecked}) == 1 and unchecked[0].error:
        return unchecked[0].error
    if unchecked:
        names = ", ".join(f"{one.name} {one.precision.value}" for one in unchecked)
        return RecordError(
            f"{len(unchecked)} of {len(rows)} comparisons could not be made: {names}"
        )
    return None


def _cells(row: MatrixRow) -> list[str]:
    end = [f"{row.seconds:.1f}", row.verdict]
    if row.parity is None:
        return [row.name, row.precision.value, *["-"] * 6, *end]
    parity = row.parity
    longest = max(one.context_length + one.new_rows for one in parity.rounds)
    return [
        row.name,
        row.precision.value,
        str(len(parity.rounds)),
        str(longest),
        ids_equal(parity),
        _worst(parity, "KL divergence", most=True),
        _worst(parity, "cosine", most=False),
        _recorded(row),
        *end,
    ]


def ids_equal(parity: ParityReport) -> str:
    """Return how many drafted ids of a parity check agree, as ``448 of 448``."""
    found = [named[DRAFT_IDS] for named in parity.findings]
    return f"{sum(one.num_equal for one in found)} of {sum(one.num_compared for one in found)}"


def _worst(parity: ParityReport, name: str, *, most: bool) -> str:
    seen = [one.seen for one in parity.measures if one.name.startswith(name)]
    if not seen:
        return "-"
    return f"{max(seen) if most else max(0.0, 1 - min(seen)):.0e}"


def _recorded(row: MatrixRow) -> str:
    if row.record is None:
        return "-"
    # An fp32 record is compared array by array (rN.tokens), a rounded one over all rounds.
    found = {name.rpartition(".")[2]: [one] for name, one in row.record.items()}
    found["tokens"] = [one for name, one in row.record.items() if name.endswith(".tokens")]
    told = _count(found["tokens"] or found[DRAFT_IDS])
    of_module = found.get(IN_BF16 + DRAFT_IDS)
    return f"{told}, PyTorch {_count(of_module)}" if of_module else told


def _count(ids: Sequence[Finding | Measure]) -> str:
    found = [one for one in ids if isinstance(one, Finding)]
    return f"{sum(one.num_equal for one in found)} of {sum(one.num_compared for one in found)}"


def _matrix_details(row: MatrixRow) -> list[str]:
    where = f"{row.name} {row.precision.value}"
    if row.error is not None:
        return [f"{where}: {row.error.message}"]
    if row.verdict == "same" or row.parity is None:
        return []
    lines = problems_of(row.parity)
    lines += [
        f"record: {name} {_problem(one)}" for name, one in (row.record or {}).items() if not one
    ]
    return [f"{where}: {line}" for line in limited(lines, MAX_DETAILS)]


def _problem(one: Finding | Measure) -> str:
    if isinstance(one, Finding):
        return one.problem
    return f"is {one.seen:.4g}, limit {one.limit:.4g}"
