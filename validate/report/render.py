"""A report as one HTML file: no script, nothing fetched, light and dark, narrow and wide.

``page.html.jinja`` and ``page.css`` beside this file are the page. Jinja escapes
every text; the style and the plots, which escape their own texts, are taken as they are.
"""

from __future__ import annotations

from pathlib import Path

from draftrt.validate.report.report import Report
from draftrt.validate.report.sections import headline, sections_of

VERDICTS = {"same": "good", "different": "bad", "not checked": "open"}
WIDEST = 28  # characters of a cell that stays on one line


def to_html(report: Report) -> str:
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
