"""A real number on the command line: in a range, and never nan or infinite."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that refuses ``nan`` and ``inf`` too."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail as wrong usage."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"got {number}, expected a finite number", param, ctx)
        return number
