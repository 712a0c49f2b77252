"""The outcome of a bench as one SVG picture, four panels, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from draftrt.runtime.decoding.schedule import Costs
from draftrt.runtime.decoding.stats import Stats
from draftrt.validate.bench.measure import SPECULATIVE
from draftrt.validate.bench.report import Report

WIDTH, HEIGHT = 960, 640
PANEL_WIDTH, PANEL_HEIGHT = 380, 200
LEFT, RIGHT, TOP, BOTTOM = 70, 550, 110, 390
INK, FAINT = "#222222", "#d0d0d0"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#999999"  # apart for every eye


def to_svg(report: Report) -> str:
    """Return the picture: speed, a round's time, kept drafts, costs of verification."""
    stats = report.system(SPECULATIVE).stats
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 34, report.pair, size=18),
        _text(LEFT, 56, _circumstances(report), colour="#666666"),
        *_speeds(report, LEFT, TOP),
    ]
    if stats is not None:
        parts += _round(stats, RIGHT, TOP) + _positions(stats, LEFT, BOTTOM)
    if report.costs:
        parts += _costs(report.costs, RIGHT, BOTTOM)
    return "\n".join([*parts, "</svg>", ""])


def _circumstances(report: Report) -> str:
    load = "" if report.before.load is None else f", load {report.before.load:.2f}"
    return (
        f"{report.num_prompts} prompts x {report.max_tokens} tokens, greedy; "
        f"{report.before.processor}, {report.before.num_cores} cores{load}"
    )


def _speeds(report: Report, x: float, y: float) -> list[str]:
    """Draw one bar a system, in tokens a second."""
    most = max(one.tokens_per_s for one in report.systems)
    height = min(34.0, PANEL_HEIGHT / len(report.systems) - 10)
    parts = [_heading(x, y, "tokens a second")]
    for index, one in enumerate(report.systems):
        top = y + index * (height + 10)
        length = (PANEL_WIDTH - 60) * one.tokens_per_s / most
        colour = {0: BLUE}.get(index, ORANGE if one.name == SPECULATIVE else GREY)
        parts.append(_bar(x, top, length, height, colour))
        told = f"{one.tokens_per_s:.0f}"
        parts.append(_text(x + length + 6, top + height / 2 + 5, told))
        is_inside = length > 8 * len(one.name)
        if is_inside:
            parts.append(_text(x + 8, top + height / 2 + 5, one.name, colour="white"))
        else:
            at = x + length + 12 + 8 * len(told)
            parts.append(_text(at, top + height / 2 + 5, one.name))
    return parts


def _round(stats: Stats, x: float, y: float) -> list[str]:
    """Draw a round's time as one bar of three parts."""
    rounds = max(stats.num_rounds, 1)
    split = [("draft", stats.draft_s, ORANGE), ("verify", stats.verify_s, BLUE)]
    split.append(("host", stats.host_s, GREEN))
    parts = [_heading(x, y, f"a round: {1e3 * stats.decode_s / rounds:.2f} ms")]
    at = x
    for index, (name, spent, colour) in enumerate(split):
        length = PANEL_WIDTH * spent / stats.decode_s
        parts.append(_bar(at, y, length, 44, colour))
        at += length
        line = y + 74 + 22 * index
        parts.append(_bar(x, line - 11, 12, 12, colour))
        share = f"{name} {1e3 * spent / rounds:.2f} ms, {spent / stats.decode_s:.1%}"
        parts.append(_text(x + 20, line, share))
    told = f"{stats.acceptance_length:.2f} tokens a round, over {stats.num_rounds} rounds"
    return [*parts, _text(x, y + 158, told)]


def _positions(stats: Stats, x: float, y: float) -> list[str]:
    """Draw the share of drafts kept at each position."""
    shares = stats.acceptance_by_position
    parts = [_heading(x, y, "drafts kept, by position"), *_grid(x, y, (0.0, 0.5, 1.0), 1.0)]
    step = PANEL_WIDTH / max(len(shares), 1)
    for index, share in enumerate(shares):
        height = PANEL_HEIGHT * share
        left = x + index * step
        parts.append(_bar(left + 4, y + PANEL_HEIGHT - height, step - 8, height, ORANGE))
        middle = left + step / 2
        parts.append(_text(middle, y + PANEL_HEIGHT + 18, str(index + 1), anchor="middle"))
    return parts


def _costs(costs: Sequence[Costs], x: float, y: float) -> list[str]:
    """Draw the time of a target call against its rows, a line for every context."""
    rows = max(max(one.verify_ms) for one in costs)
    most = max(max(one.verify_ms.values()) for one in costs)
    marks = (0.0, most / 2, most)
    parts = [_heading(x, y, "verify, ms by rows"), *_grid(x, y, marks, most)]
    parts += [
        _text(x + PANEL_WIDTH * count / rows, y + PANEL_HEIGHT + 18, str(count), anchor="middle")
        for count in costs[0].verify_ms
    ]
    for index, (one, colour) in enumerate(zip(costs, (BLUE, GREEN), strict=False)):
        points = [
            (x + PANEL_WIDTH * count / rows, y + PANEL_HEIGHT * (1 - time / most))
            for count, time in one.verify_ms.items()
        ]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        line = y + 18 + 18 * index
        parts.append(_text(x + 10, line, f"behind {one.context} cached tokens", colour=colour))
    return parts


def _grid(x: float, y: float, marks: Sequence[float], most: float) -> list[str]:
    parts = []
    for mark in marks:
        top = y + PANEL_HEIGHT * (1 - mark / most)
        parts.append(
            f'<line x1="{x}" y1="{top:.1f}" x2="{x + PANEL_WIDTH}" y2="{top:.1f}" '
            f'stroke="{FAINT}"/>'
        )
        parts.append(_text(x - 8, top + 4, f"{mark:.3g}", anchor="end", colour="#666666"))
    return parts


def _heading(x: float, y: float, text: str) -> str:
    return _text(x, y - 16, text, size=15)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
        f'fill="{colour}"/>'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 13, anchor: str = "start", colour: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
