"""The option ``--rounds`` of every command that compares rounds of drafting."""

from __future__ import annotations

import click

MOST_ROUNDS = 1000  # of a sequence

rounds_option = click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(4, MOST_ROUNDS),
    default=4,
    show_default=True,
    help="Rounds of the short and of the long sequence each.",
)
