"""Parity reports as text and JSON."""

from __future__ import annotations

from typing import Any

from draftrt.compare.arrays import Finding
from draftrt.compare.measures import Measure
from draftrt.signature import PRESENT
from draftrt.tolerances import CACHE, IDS
from draftrt.validate.compare.tables import limited, render
from draftrt.validate.parity.parity import AS_RUN, REFERENCE, ParityReport

MAX_DETAILS = 6


def as_text(report: ParityReport) -> list[str]:
    """Return a heading, one line an output (caches together), one a measure, what differs."""
    problems = limited(problems_of(report), MAX_DETAILS)
    notes = [f"note: {note}" for note in report.notes]
    measures = render(measure_rows(report)) if report.measures else []
    return [heading(report), *render(output_rows(report)), *measures, *notes, *problems]


def heading(report: ParityReport) -> str:
    """Return what was compared, in one line."""
    longest = max((one.context_length + one.new_rows for one in report.rounds), default=0)
    graphs = " and ".join(dict.fromkeys(one.graph for one in report.rounds))
    passed = [str(window) for window in report.windows if window < longest]
    window = f", past the sliding window of {' and '.join(passed)}" if passed else ""
    return (
        f"{report.bundle}: {report.backend} against {REFERENCE}, {report.precision.value}, "
        f"{len(report.rounds)} rounds of {graphs}, context up to {longest}{window}"
    )


def output_rows(report: ParityReport) -> list[list[str]]:
    """Return the table of outputs, its heading first."""
    rows = [["output", "compared", "worst", "limit", "verdict"]]
    return rows + [_row(name, named, report) for name, named in _grouped(report).items()]


def measure_rows(report: ParityReport) -> list[list[str]]:
    """Return the table of measures, its heading first."""
    rows = [["measure", "rows", "seen", "limit", "verdict"]]
    return rows + [_measure_row(one) for one in report.measures]


def as_json(report: ParityReport) -> dict[str, Any]:
    """Return the whole report as JSON data."""
    return {
        "bundle": str(report.bundle),
        "backend": report.backend,
        "precision": report.precision.value,
        "same": report.is_same,
        "rounds": [
            {
                "graph": planned.graph,
                "context_length": planned.context_length,
                "new_rows": planned.new_rows,
                "outputs": [finding.to_json() for finding in named.values()],
            }
            for planned, named in zip(report.rounds, report.findings, strict=True)
        ],
        "shares": [finding.to_json() for finding in report.shares.values()],
        "measures": [measure.to_json() for measure in report.measures],
        "limits": {
            name: {
                "atol": limit.atol,
                "rtol": limit.rtol,
                "agreement": limit.agreement,
                "reason": limit.reason,
            }
            for name, limit in report.limits.items()
        },
        "files": [
            {"file": one.file, "same": bool(one), "differences": list(one.sentences)}
            for one in report.files
        ],
        "windows": list(report.windows),
        "notes": list(report.notes),
    }


def _grouped(report: ParityReport) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for named in report.findings:
        for name, finding in named.items():
            is_cache, as_run = name.startswith(PRESENT), name.endswith(AS_RUN)
            kind = CACHE + AS_RUN * as_run if is_cache else name
            grouped.setdefault(kind, []).append(finding)
    caches = {kind: grouped.pop(kind) for kind in (CACHE, CACHE + AS_RUN) if kind in grouped}
    return grouped | caches


def _row(name: str, findings: list[Finding], report: ParityReport) -> list[str]:
    is_same = all(findings) and bool(report.shares.get(name, True))
    verdict = "same" if is_same else "different"
    total = sum(one.num_compared for one in findings)
    if name.removesuffix(AS_RUN) in IDS:
        equal, least = sum(one.num_equal for one in findings), report.limits[name].agreement
        limit = "all equal" if least == 1 else f"{least:.0%} equal"
        return [name, f"{total} ids", f"{total - equal} differ", limit, verdict]
    worst = max(findings, key=lambda one: one.worst - one.allowed)
    return [name, f"{total:,} values", f"{worst.worst:.1e}", f"{worst.allowed:.1e}", verdict]


def _measure_row(one: Measure) -> list[str]:
    sign, unit = ("≥" if one.is_least else "≤"), f" {one.unit}" if one.unit else ""
    limit = f"{sign} {figure(one, one.limit)}{unit}"
    verdict = "same" if one else "different"
    what = f"{one.output}: {one.name}"
    return [what, f"{one.num_rows:,}", f"{figure(one, one.seen)}{unit}", limit, verdict]


def figure(measure: Measure, value: float) -> str:
    """Return a figure of a measure: shares and cosines by their distance to one, others as is."""
    if not measure.is_least:
        return f"{value:.1e}"
    if "cosine" in measure.name:
        return "1" if value == 1 else f"1 - {1 - value:.1e}"
    return f"{value:.2%}"


def problems_of(report: ParityReport) -> list[str]:
    """Return a line for everything that differs: files, then values beyond a limit, worst first."""
    files = [f"{one.file}: {what}" for one in report.files for what in one.sentences]
    found = [
        (finding.allowed - finding.worst, planned, index, finding)
        for index, (planned, named) in enumerate(zip(report.rounds, report.findings, strict=True))
        for finding in named.values()
        if not finding
    ]
    lines = files + [
        f"{planned.graph} round {index} (context {planned.context_length} + {planned.new_rows}): "
        f"{finding.output} {finding.problem}"
        for _, planned, index, finding in sorted(found, key=lambda item: item[0])
    ]
    lines += [f"{one.output}: {one.problem}" for one in report.shares.values() if not one]
    return lines + [
        f"{one.output}: {one.name} is {one.seen:.4g}, limit {one.limit:.4g}"
        for one in report.measures
        if not one
    ]
