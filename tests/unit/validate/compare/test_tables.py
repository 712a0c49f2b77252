"""Tables line up and stay short."""

from __future__ import annotations

from draftrt.validate.compare.tables import limited, render


def test_columns_line_up_and_lines_have_no_trailing_blanks() -> None:
    assert render([["a", "long name", "x"], ["bcd", "e", ""]]) == ["a    long name  x", "bcd  e"]


def test_what_is_left_out_is_counted() -> None:
    lines = [str(n) for n in range(9)]
    assert limited(lines, 9) == lines
    assert limited(lines, 3) == ["0", "1", "... and 7 more"]
