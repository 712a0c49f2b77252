"""Range reports as text and JSON."""

from __future__ import annotations

import math
from typing import Any

from draftrt.validate.compare.tables import render
from draftrt.validate.parity.ranges import NEAR, Point, RangeReport

SHOWN = 24


def verdict(point: Point) -> str:
    """Return ``fits``, ``near`` (half of the range or more) or ``overflows``."""
    if point.share > 1:
        return "overflows"
    return "near" if point.share >= NEAR else "fits"


def as_text(report: RangeReport, *, show_all: bool = False) -> list[str]:
    """Return a heading, the points from the largest on, and what became of the ids."""
    kind = f"the target's features of prompts ({report.form})" if report.form else "random features"
    heading = (
        f"{report.bundle}: fp16 in PyTorch, {report.num_rounds} rounds, {kind} up to "
        f"{report.features:g}"
    )
    points = report.points if show_all else report.points[:SHOWN]
    rows = [["tensor", "largest |x|", "share of 65504", "verdict"]]
    rows += [
        [point.name, f"{point.largest:.4g}", f"{point.share:.2%}", verdict(point)]
        for point in points
    ]
    lines = [heading, *render(rows)]
    if len(points) < len(report.points):
        lines.append(f"... and {len(report.points) - len(points)} smaller ones (--all)")
    ids = report.ids
    return [
        *lines,
        f"draft ids: {ids.num_equal} of {ids.num_compared} as with the same weights in float32",
    ]


def as_json(report: RangeReport) -> dict[str, Any]:
    """Return the whole report as JSON data; a magnitude that is no number becomes a text."""
    return {
        "bundle": str(report.bundle),
        "features": report.features,
        "real_features": bool(report.form),
        "form": report.form or None,
        "rounds": report.num_rounds,
        "finite": report.is_finite,
        "points": [
            {
                "tensor": point.name,
                "largest": point.largest if math.isfinite(point.largest) else str(point.largest),
                "verdict": verdict(point),
            }
            for point in report.points
        ],
        "ids": report.ids.to_json(),
    }
