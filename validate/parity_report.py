"""Parity reports as text and JSON."""

from __future__ import annotations

from typing import Any

from draftrt.validate.compare import Finding
from draftrt.validate.parity import AS_RUN, ParityReport
from draftrt.validate.table import limited, render
from draftrt.validate.tolerances import CACHE, IDS

MAX_DETAILS = 6


def as_text(report: ParityReport) -> list[str]:
    """Return a heading, one line an output (caches together) and what differs, worst first."""
    longest = max(one.context_length + one.new_rows for one in report.rounds)
    graphs = " and ".join(dict.fromkeys(one.graph for one in report.rounds))
    heading = (
        f"{report.bundle}: {report.backend} against pytorch, {report.precision.value}, "
        f"{len(report.rounds)} rounds of {graphs}, context up to {longest}"
    )
    rows = [["output", "compared", "worst", "limit", "verdict"]]
    rows += [_row(name, named, report) for name, named in _grouped(report).items()]
    return [heading, *render(rows), *limited(_problems(report), MAX_DETAILS)]


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
                "capacity": planned.capacity,
                "context_length": planned.context_length,
                "new_rows": planned.new_rows,
                "outputs": [finding.to_json() for finding in named.values()],
            }
            for planned, named in zip(report.rounds, report.findings, strict=True)
        ],
        "shares": [finding.to_json() for finding in report.shares.values()],
        "limits": {
            name: {
                "atol": limit.atol,
                "rtol": limit.rtol,
                "agreement": limit.agreement,
                "reason": limit.reason,
            }
            for name, limit in report.limits.items()
        },
    }


def _grouped(report: ParityReport) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for named in report.findings:
        for name, finding in named.items():
            is_cache, as_run = name.startswith("present_"), name.endswith(AS_RUN)
            kind = CACHE + AS_RUN * as_run if is_cache else name
            grouped.setdefault(kind, []).append(finding)
    return grouped


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


def _problems(report: ParityReport) -> list[str]:
    found = [
        (finding.allowed - finding.worst, planned, index, finding)
        for index, (planned, named) in enumerate(zip(report.rounds, report.findings, strict=True))
        for finding in named.values()
        if not finding
    ]
    lines = [
        f"{planned.graph} round {index} (context {planned.context_length} + {planned.new_rows}): "
        f"{finding.output} {finding.problem}"
        for _, planned, index, finding in sorted(found, key=lambda item: item[0])
    ]
    return lines + [f"{one.output}: {one.problem}" for one in report.shares.values() if not one]
