"""What the sections of a report are made of: tables, sentences, and plots as SVG.

Plots are inline in a page, whose style sheet colours them, or together on a `sheet` that has a
style of its own. Every text is escaped here. Sizes are in the units of a view box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 16, 38
HEADROOM = 1.35  # above the highest line, for the names of the lines
COLOURS = ("c1", "c2", "c3")  # classes of the style sheet
MARGIN = 24  # about each plot of a sheet
STYLE = """
text { font: 11px system-ui, sans-serif; fill: #5f6770; }
text.legend { font-size: 13px; }
text.legend, text.value, text.heading, text.title { fill: #1c2024; }
text.heading { font-weight: 600; } text.title { font-size: 17px; }
.grid { stroke: #dfe3e8; }
.c1 { fill: #0b63b5; } .c2 { fill: #c2570c; } .c3 { fill: #08775a; }
.line { fill: none; stroke-width: 2.5; }
.line.c1 { stroke: #0b63b5; } .line.c2 { stroke: #c2570c; } .line.c3 { stroke: #08775a; }
"""


def bars(
    label: str, values: Sequence[float], names: Sequence[str], *, axis: str, most: float
) -> str:
    """Return one bar a value, from zero to ``most``.

    Args:
        label: what the plot shows, for readers who cannot see it.
        values: heights; NaN and what is beyond the axis are drawn to its ends.
        names: what stands below each bar.
        axis: what stands below the names.
        most: upper end of the axis.
    """
    parts = _grid(most, axis)
    step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    for index, (value, name) in enumerate(zip(values, names, strict=True)):
        share = min(max(value / most, 0.0), 1.0) if value == value and most else 0.0
        height = share * (HEIGHT - TOP - BOTTOM)
        x = LEFT + index * step + 0.15 * step
        y = HEIGHT - BOTTOM - height
        parts.append(
            f'<rect class="c1" x="{x:.1f}" y="{y:.1f}" width="{0.7 * step:.1f}" '
            f'height="{height:.1f}" rx="2"><title>{escape(name)}: {value:.3g}</title></rect>'
        )
        middle = x + 0.35 * step
        parts.append(_text(middle, HEIGHT - BOTTOM + 15, name, anchor="middle"))
        parts.append(_text(middle, y - 4, f"{value:.2f}", anchor="middle", kind="value"))
    return _svg(label, parts)


def split(label: str, parts_of: Mapping[str, float], *, unit: str) -> str:
    """Return one bar divided into parts, each with its figure and share.

    Args:
        label: what the plot shows.
        parts_of: name to size, at most three.
        unit: of the sizes.
    """
    whole = sum(parts_of.values())
    x, width = 4.0, WIDTH - 8.0
    parts: list[str] = []
    for index, (name, size) in enumerate(parts_of.items()):
        share = size / whole if whole else 0.0
        colour = COLOURS[index % len(COLOURS)]
        parts.append(
            f'<rect class="{colour}" x="{x:.1f}" y="8" width="{max(share * width, 0.5):.1f}" '
            f'height="46" rx="2"><title>{escape(name)}</title></rect>'
        )
        line = 84 + 26 * index
        parts.append(
            f'<rect class="{colour}" x="4" y="{line - 12}" width="14" height="14" rx="2"/>'
        )
        told = f"{name}  {size:.3g} {unit}, {share:.1%}"
        parts.append(_text(26, line, told, kind="legend"))
        x += share * width
    return _svg(label, parts, height=84 + 26 * len(parts_of))


def lines(
    label: str,
    series: Mapping[str, Mapping[int, float]],
    *,
    axis: str,
    unit: str,
) -> str:
    """Return a line a series over whole numbers, from zero up.

    Args:
        label: what the plot shows.
        series: name to points, x to y.
        axis: what x is.
        unit: of y.
    """
    points = [(x, y) for one in series.values() for x, y in one.items()]
    most = HEADROOM * max((y for _, y in points), default=1.0) or 1.0
    far = max((x for x, _ in points), default=1)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = _grid(most, axis)
    for count in sorted({count for count, _ in points}):
        place = LEFT + width * count / far
        parts.append(_text(place, HEIGHT - BOTTOM + 15, str(count), anchor="middle"))
    for index, (name, one) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        places = [(LEFT + width * x / far, TOP + height * (1 - y / most)) for x, y in one.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        for (x, y), (rows, value) in zip(places, one.items(), strict=True):
            told = f"{name}, {rows}: {value:.3g} {unit}"
            parts.append(
                f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
                f"<title>{escape(told)}</title></circle>"
            )
        parts.append(
            f'<rect class="{colour}" x="{LEFT + 10}" y="{TOP + 4 + 20 * index}" width="12" '
            'height="12" rx="2"/>'
        )
        parts.append(_text(LEFT + 28, TOP + 15 + 20 * index, name, kind="legend"))
    return _svg(label, parts)


def rows_of_bars(label: str, values: Mapping[str, float]) -> str:
    """Return one bar a value below its name, from zero to the largest.

    Args:
        label: what the plot shows.
        values: name to length.
    """
    most = max(values.values(), default=0.0) or 1.0
    parts: list[str] = []
    for index, (name, value) in enumerate(values.items()):
        y, width = 14 + 46 * index, (WIDTH - 60) * value / most
        parts.append(_text(4, y, name, kind="legend"))
        parts.append(
            f'<rect class="{COLOURS[min(index, 2)]}" x="4" y="{y + 6}" width="{width:.1f}" '
            'height="18" rx="2"/>'
        )
        parts.append(_text(width + 10, y + 20, f"{value:.1f}", kind="value"))
    return _svg(label, parts, height=max(14 + 46 * len(values), 1))


def sheet(title: str, about: str, plots: Sequence[tuple[str, str]]) -> str:
    """Return plots as one picture, two a row, in a file of its own.

    Args:
        title: above them.
        about: how the figures were found.
        plots: the title and the picture of each.
    """
    width, height = WIDTH + 2 * MARGIN, HEIGHT + 80
    rows = -(-len(plots) // 2)
    whole = f"0 0 {2 * width} {60 + rows * height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{whole}" role="img">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text class="title" x="{MARGIN}" y="30">{escape(title)}</text>',
        _text(MARGIN, 50, about),
    ]
    for index, (name, svg) in enumerate(plots):
        x, y = MARGIN + index % 2 * width, 90 + index // 2 * height
        size = f'x="{x}" y="{y + 14}" width="{WIDTH}" height="{HEIGHT + 20}" '
        parts.append(_text(x, y, name, kind="heading"))
        parts.append(svg.replace("<svg ", f'<svg preserveAspectRatio="xMinYMin" {size}', 1))
    return "\n".join([*parts, "</svg>", ""])


def _grid(most: float, axis: str) -> list[str]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        )
        parts.append(_text(LEFT - 6, y + 4, f"{share * most:.3g}", anchor="end"))
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*parts, _text(middle, HEIGHT - 6, axis, anchor="middle")]


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(label: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts below a heading.

    Attributes:
        head: names of the columns, with their units.
        rows: as many cells each.
        title: what the table shows.
        is_long: whether a reader unfolds it.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    is_long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture beside the table with its figures.

    Attributes:
        title: what it shows.
        svg: the picture.
        table: its figures.
    """

    title: str
    svg: str
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report.

    Attributes:
        title: its heading.
        text: sentences.
        tables: in order.
        plots: in order.
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = field(default_factory=tuple)
