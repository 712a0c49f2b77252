"""A report as one HTML file or as Markdown.

A report as one HTML file: no script, nothing fetched, light and dark, narrow and wide.

``page.html.jinja`` and ``page.css`` beside this file are the page. Jinja escapes
every text; the style and the plots, which escape their own texts, are taken as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

from draftrt.validate.bench.plots import Section, Table
from draftrt.validate.report.report import BundleReport
from draftrt.validate.report.sections import headline, sections_of

VERDICTS = {"same": "good", "different": "bad", "not checked": "open"}
WIDEST = 28  # characters of a cell that stays on one line


def to_html(report: BundleReport) -> str:
    """Return the report as one HTML page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    pages = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return pages.get_template("page.html.jinja").render(
        report=report,
        headline=headline(report),
        sections=sections_of(report),
        style=(here / "page.css").read_text(encoding="utf-8"),
        verdicts=VERDICTS,
        widest=WIDEST,
    )


SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(report: BundleReport) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    figures = Table(head=["", ""], rows=[list(pair) for pair in headline(report)])
    parts = [f"# {plain(report.name)}", f"What draftrt found, {plain(report.created)}"]
    parts += ["\n".join(_rows(figures)), *(_section(one) for one in sections_of(report))]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(section: Section) -> str:
    parts = [f"## {plain(section.title)}", *map(plain, section.text)]
    tables = [(table.title, table) for table in section.tables]
    tables += [(plot.title, plot.table) for plot in section.plots]
    for title, table in tables:
        if table.rows:
            parts += [f"### {plain(title)}", "\n".join(_rows(table))]
    return "\n\n".join(parts)


def _rows(table: Table) -> list[str]:
    lines = [table.head, ["---"] * len(table.head)]
    told = [[plain(cell) for cell in row] for row in (table.head, *table.rows)]
    return ["| " + " | ".join(row) + " |" for row in (told[0], lines[1], *told[1:])]
