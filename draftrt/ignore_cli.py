"""The option ``--ignore-key`` of every command that reads checkpoints."""

from __future__ import annotations

import click

ignore_key_option = click.option(
    "--ignore-key",
    "ignore_keys",
    metavar="[target:]KEY",
    multiple=True,
    help="Unknown config key without effect, of the drafter or, with target:, of the target. "
    "Repeatable.",
)
