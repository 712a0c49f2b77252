"""docs/accuracy.md says what the table of limits says."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.tolerances import LIMITS, as_markdown, updated


def test_the_page_holds_the_table_as_it_is(root: Path) -> None:
    page = (root / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert updated(page) == page, "run python -m draftrt.tolerances docs/accuracy.md"


def test_the_table_names_every_backend_and_every_reason() -> None:
    told = as_markdown()
    for (backend, precision, _), limit in LIMITS.items():
        cells = [line.split(" | ") for line in told.splitlines()]
        lines = [
            " ".join(row)
            for row in cells
            if backend in row[0].strip("| ").split(", ") and row[1] == precision.value
        ]
        assert len(lines) == 3
        assert any(limit.reason in line for line in lines)


def test_a_page_without_the_marks_is_no_place_for_it() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        updated("# Accuracy")
