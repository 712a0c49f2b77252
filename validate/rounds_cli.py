"""The option ``--rounds`` of every command that compares rounds of drafting."""

from __future__ import annotations

import click

rounds_option = click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(min=4),
    default=4,
    show_default=True,
    help="Rounds of the short and of the long sequence each.",
)
