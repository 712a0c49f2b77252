"""The outcome of a bench as JSON data, as text for people and as one SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from draftrt.errors import printable
from draftrt.provenance import Machine
from draftrt.runtime.decoding.schedule import Costs
from draftrt.runtime.decoding.stats import Stats
from draftrt.validate.bench.measure import SPECULATIVE, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything a bench found, and how it was found.

    Attributes:
        bundle: folder of the bundle.
        pair: family, drafts a round and what runs it, in words.
        max_tokens: new tokens of each decoding.
        num_prompts: prompts.
        form: their form, in words.
        repeats: decodings of each prompt by each system.
        schedule: how many drafts were verified.
        versions: package to version.
        before: the machine when the bench began.
        after: the machine when it ended.
        systems: what each system did, plain decoding first.
        costs: times of a round's calls, by context.
        peak_memory_bytes: of the process, before any rival was loaded; None where not told.
        cache_bytes_per_token: ``drafter`` and, where it runs as a graph, ``target``.
        notes: what was not measured and why.
    """

    bundle: str
    pair: str
    max_tokens: int
    num_prompts: int
    form: str
    repeats: int
    schedule: str
    versions: dict[str, str]
    before: Machine
    after: Machine
    systems: Sequence[Summary]
    costs: Sequence[Costs]
    peak_memory_bytes: int | None
    cache_bytes_per_token: dict[str, int]
    notes: Sequence[str] = ()

    def system(self, name: str) -> Summary:
        """Return one system's summary."""
        return next(one for one in self.systems if one.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return {
            "bundle": self.bundle,
            "pair": self.pair,
            "max_tokens": self.max_tokens,
            "num_prompts": self.num_prompts,
            "form": self.form,
            "repeats": self.repeats,
            "schedule": self.schedule,
            "versions": self.versions,
            "processor": self.before.processor,
            "num_cores": self.before.num_cores,
            "load": [self.before.load, self.after.load],
            "systems": [_system_json(one) for one in self.systems],
            "costs": [one.to_json() for one in self.costs],
            "peak_memory_bytes": self.peak_memory_bytes,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return the report as at most 25 lines."""
        lines = [
            f"pair      {self.pair}",
            f"machine   {self.before.processor}, {self.before.num_cores} cores, load "
            f"{_load(self.before)} before and {_load(self.after)} after",
            f"decoded   {self.num_prompts} prompts x {self.max_tokens} tokens, each {self.repeats} "
            f"times, greedy, schedule {self.schedule}",
            f"prompts   {printable(self.form)}",
            "",
            *_table(self.systems),
            "",
        ]
        stats = self.system(SPECULATIVE).stats
        if stats is not None:
            lines += _round_lines(stats)
        for costs in self.costs:
            lines += _cost_lines(costs)
        lines += _growth_lines(self.costs, self.cache_bytes_per_token.get("target", 0))
        lines.append(f"memory    {self._memory()}")
        if self.before.is_busy:
            lines.append("warning   the machine was busy when this began; compare nothing but rows")
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])

    def _memory(self) -> str:
        held = [f"{name} {size:,}" for name, size in self.cache_bytes_per_token.items()]
        peak = self.peak_memory_bytes
        told = "not told here" if peak is None else f"{peak / 1e6:.0f} MB"
        return f"peak {told}; caches, bytes a token: {', '.join(held)}"


def _table(systems: Sequence[Summary]) -> list[str]:
    ours = next(one for one in systems if one.name == SPECULATIVE)
    rows = [["", "tokens/s", "first token", "x plain", f"{SPECULATIVE} is", "same ids"]]
    for one in systems:
        ratio = ours.times_plain / one.times_plain
        rows.append(
            [
                one.name,
                f"{one.tokens_per_s:.1f}",
                "-" if one.first_ms is None else f"{one.first_ms:.1f} ms",
                f"{one.times_plain:.3g}",
                "" if one is ours else f"{ratio:.2f} x as fast",
                f"{one.num_same} of {one.num_decodings}",
            ]
        )
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _round_lines(stats: Stats) -> list[str]:
    whole = stats.decode_s
    parts = (("draft", stats.draft_s), ("verify", stats.verify_s), ("host", stats.host_s))
    split = ", ".join(
        f"{name} {1e3 * spent / max(stats.num_rounds, 1):.2f} ms ({spent / whole:.1%})"
        for name, spent in parts
    )
    positions = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
    return [
        f"round     {split}",
        f"accepted  length {stats.acceptance_length:.2f} over {stats.num_rounds} rounds; "
        f"by position {positions}",
    ]


def _cost_lines(costs: Costs) -> list[str]:
    one = costs.verify_ms[1]
    cells = ", ".join(
        f"{rows}: {time:.2f} ({time / one:.2f})" for rows, time in costs.verify_ms.items()
    )
    return [
        f"costs     behind {costs.context} tokens: draft {costs.draft_ms:.2f} ms; verify, ms by "
        "rows (to one row)",
        f"          {cells}",
    ]


def _growth_lines(costs: Sequence[Costs], bytes_per_token: int) -> list[str]:
    """Return what more context costs: only attention's reading of it should."""
    if len(costs) < 2:
        return []
    near, far = costs[0], costs[-1]
    more = (far.context - near.context) / 1000
    rows = max(near.verify_ms)
    cells = [("draft", far.draft_ms - near.draft_ms)] + [
        (f"verify {count}", far.verify_ms[count] - near.verify_ms[count]) for count in (1, rows)
    ]
    told = ", ".join(f"{name} {extra / more:+.2f}" for name, extra in cells)
    read = (far.context - near.context) * bytes_per_token
    spent_ms = far.verify_ms[1] - near.verify_ms[1]
    rate = f"{read / spent_ms / 1e6:.1f} GB/s" if spent_ms > 0 else "no measurable time"
    return [
        f"context   ms for every 1,000 tokens more: {told}",
        f"          one row reads their {bytes_per_token / 1e3:.1f} MB of K/V at {rate}",
    ]


def _system_json(one: Summary) -> dict[str, Any]:
    return {
        "name": one.name,
        "tokens_per_s": one.tokens_per_s,
        "first_ms": one.first_ms,
        "times_plain": one.times_plain,
        "num_decodings": one.num_decodings,
        "num_same": one.num_same,
        "stats": None if one.stats is None else one.stats.to_json(),
    }


def _load(machine: Machine) -> str:
    return "?" if machine.load is None else f"{machine.load:.2f}"


WIDTH, HEIGHT = 960, 640
PANEL_WIDTH, PANEL_HEIGHT = 380, 200
LEFT, RIGHT, TOP, BOTTOM = 70, 550, 110, 390
INK, FAINT = "#222222", "#d0d0d0"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#999999"  # apart for every eye


def to_svg(report: BenchReport) -> str:
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


def _circumstances(report: BenchReport) -> str:
    load = "" if report.before.load is None else f", load {report.before.load:.2f}"
    return (
        f"{report.num_prompts} prompts x {report.max_tokens} tokens, greedy; "
        f"{report.before.processor}, {report.before.num_cores} cores{load}"
    )


def _speeds(report: BenchReport, x: float, y: float) -> list[str]:
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
