"""The progress bar of an export."""

from __future__ import annotations

from draftrt.export.cli import bar
from draftrt.export.weights.storage import Progress


def test_the_bar_tells_bytes_and_the_time_that_is_left() -> None:
    text = bar(Progress(done=2_000_000_000, total=8_000_000_000), 5.0)
    assert text == f"[{'#' * 8}{' ' * 22}] 2.0 of 8.0 GB, 15 s left"
    assert bar(Progress(done=0, total=10**9), 3.0).endswith("0.0 of 1.0 GB")
