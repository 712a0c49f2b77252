"""A report as one HTML file: no script, nothing fetched, light and dark, narrow and wide.

Every text that is not written here is escaped, whatever it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from draftrt.validate.report import Report
from draftrt.validate.report_parts import Plot, Section, Table
from draftrt.validate.report_sections import headline, sections_of

VERDICTS = {"same": "good", "different": "bad", "not checked": "open"}
STYLE = """
:root { color-scheme: light dark; --page: #fafafa; --card: #ffffff; --ink: #1c2024;
  --faint: #5f6770; --edge: #dfe3e8; --one: #0b63b5; --two: #c2570c; --three: #08775a;
  --good: #0a6b4d; --bad: #b3261e; --open: #7a5b00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171a; --card: #1c2024; --ink: #e6e9ec; --faint: #a2abb4; --edge: #343b42;
    --one: #6db3f2; --two: #f0a35e; --three: #4cc9a1; --good: #4cc9a1; --bad: #ff8a80;
    --open: #e3c057; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.6rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 36px 0 10px; }
h3 { font-size: 1rem; margin: 18px 0 8px; }
p { margin: 6px 0; max-width: 76ch; overflow-wrap: anywhere; }
.lead { color: var(--faint); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0 8px; padding: 0; list-style: none; }
.tiles li, figure { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; }
.tiles li { padding: 12px 14px; }
.tiles b { display: block; font-size: 1.05rem; overflow-wrap: anywhere; }
.tiles span { color: var(--faint); font-size: 0.85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr));
  gap: 14px; margin: 12px 0; }
figure { margin: 0; padding: 14px 16px; min-width: 0; }
figcaption { font-weight: 600; font-size: 0.92rem; margin-bottom: 8px; }
figure details { margin-top: 6px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--edge);
  border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px; }
th { color: var(--faint); font-weight: 600; white-space: nowrap; }
tr + tr td, thead + tbody td { border-top: 1px solid var(--edge); }
td { font-variant-numeric: tabular-nums; }
td.wide { min-width: 220px; overflow-wrap: anywhere; }
td.short { white-space: nowrap; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.open { color: var(--open); font-weight: 600; }
details { margin: 12px 0; }
summary { cursor: pointer; font-weight: 600; font-size: 0.92rem; padding: 4px 0; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); }
svg text.legend { font-size: 13px; fill: var(--ink); }
svg text.value { fill: var(--ink); }
svg .grid { stroke: var(--edge); }
svg .c1 { fill: var(--one); } svg .c2 { fill: var(--two); } svg .c3 { fill: var(--three); }
svg .line { fill: none; stroke-width: 2.5; }
svg .line.c1 { stroke: var(--one); } svg .line.c2 { stroke: var(--two); }
svg .line.c3 { stroke: var(--three); }
footer { margin-top: 40px; color: var(--faint); font-size: 0.85rem; }
@media (max-width: 560px) { main { padding: 16px 12px 32px; } th, td { padding: 5px 8px; } }
@media print { body { background: none; } .scroll { overflow: visible; } }
"""


def to_html(report: Report) -> str:
    """Return the report as one HTML page."""
    name = escape(report.name)
    tiles = "".join(_tile(what, told) for what, told in headline(report))
    sections = "".join(_section(one) for one in sections_of(report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: draftrt report</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        f'<h1>{name}</h1><p class="lead">What draftrt found about this bundle, '
        f"{escape(report.created)}</p>\n"
        f'<ul class="tiles">{tiles}</ul>\n{sections}'
        f"<footer>Made by {escape(report.command)}. This page loads nothing.</footer>\n"
        "</main></body></html>\n"
    )


def _tile(what: str, told: str) -> str:
    kind = VERDICTS.get(told, "")
    return f'<li><span>{escape(what)}</span><b class="{kind}">{escape(told)}</b></li>'


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.text]
    parts += [_table(table) for table in section.tables if table.rows]
    if section.plots:
        parts += ['<div class="plots">', *map(_plot, section.plots), "</div>"]
    return "\n".join([*parts, "</section>\n"])


def _plot(plot: Plot) -> str:
    return (
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg}"
        f"<details><summary>Figures</summary>{_rows(plot.table)}</details></figure>"
    )


def _table(table: Table) -> str:
    if table.is_long:
        title = f"{escape(table.title)} ({len(table.rows)})"
        return f"<details><summary>{title}</summary>{_rows(table)}</details>"
    return f"<h3>{escape(table.title)}</h3>{_rows(table)}"


def _rows(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    cells = []
    for cell in row:
        kind = VERDICTS.get(cell) or ("wide" if len(cell) > 28 else "short")
        cells.append(f'<td class="{kind}">{escape(cell)}</td>')
    return "".join(cells)
