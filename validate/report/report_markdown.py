"""A report as Markdown: the same sentences and figures, plots as their tables."""

from __future__ import annotations

import re

from draftrt.validate.report.report import Report
from draftrt.validate.report.report_parts import Section, Table
from draftrt.validate.report.sections import headline, sections_of

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def to_markdown(report: Report) -> str:
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
