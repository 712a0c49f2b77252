"""What the sections of a report are made of: tables, plots, sentences; no HTML, no Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
