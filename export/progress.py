"""Lines and a progress bar on standard error; the bar on a terminal only."""

from __future__ import annotations

import sys
from time import monotonic

from draftrt.export.weights.places import Progress

WIDTH = 30
ERASE = "\r\033[K"


class ProgressBar:
    """What an export shows while it works."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._is_shown = False

    def report(self, line: str) -> None:
        """Show a line; a bar that is there gives way."""
        self._erase()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def show(self, progress: Progress) -> None:
        """Show how far the copying is, with the time that is left."""
        if not sys.stderr.isatty() or not progress.total:
            return
        now = monotonic()
        self._started = now if self._started is None else self._started
        sys.stderr.write(ERASE + bar(progress, now - self._started))
        sys.stderr.flush()
        self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown:
            sys.stderr.write(ERASE)
            self._is_shown = False


def bar(progress: Progress, seconds: float) -> str:
    """Return the bar as text: ``[####    ] 1.2 of 8.0 GB, 40 s left``."""
    share = min(1.0, progress.done / progress.total)
    filled = round(WIDTH * share)
    text = f"[{'#' * filled}{' ' * (WIDTH - filled)}] "
    text += f"{progress.done / 1e9:.1f} of {progress.total / 1e9:.1f} GB"
    if seconds >= 1 and share > 0:
        text += f", {seconds / share - seconds:.0f} s left"
    return text
