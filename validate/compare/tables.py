"""Plain text tables for the terminal: left-aligned columns, two spaces apart."""

from __future__ import annotations

from collections.abc import Sequence


def render(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines; the first is the heading, all have as many cells."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def limited(lines: Sequence[str], most: int) -> list[str]:
    """Return at most ``most`` lines; the last one then says how many were left out."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]
