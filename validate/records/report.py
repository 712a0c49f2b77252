"""Golden reports as text and JSON, and the error that gives the command its exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.errors import DraftrtError, ParityError
from draftrt.validate.compare.arrays import Finding, worst_of
from draftrt.validate.compare.tables import limited, render
from draftrt.validate.records.cases import ID_ARRAYS
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.golden import CaseReport

MAX_DETAILS = 3


def as_text(reports: Sequence[CaseReport], backends: Sequence[str]) -> list[str]:
    """Return one table line a case, then what is wrong with those that are not the same."""
    rows = [["case", "rounds", *backends, "limit", "verdict"]]
    for one in reports:
        cells = [_cell(one.findings[name]) if name in one.findings else "-" for name in backends]
        rows.append(
            [one.name, str(one.num_rounds), *cells, f"{one.limit.atol:.0e}", one.verdict],
        )
    return [*render(rows), *(line for one in reports for line in _details(one))]


def as_json(reports: Sequence[CaseReport]) -> dict[str, Any]:
    """Return the reports as JSON data."""
    return {"cases": [_case_json(one) for one in reports]}


def failure(reports: Sequence[CaseReport]) -> DraftrtError | None:
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
    ids = [one for name, one in findings.items() if name.split(".")[1] in ID_ARRAYS]
    values = [one for name, one in findings.items() if name.split(".")[1] not in ID_ARRAYS]
    said = "same ids" if all(ids) else f"{sum(not one for one in ids)} id arrays differ"
    return f"{said}, {max((one.worst for one in values), default=0.0):.1e}"


def _details(one: CaseReport) -> list[str]:
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
