"""The options that say what a drafter is, where its config does not or is wrong."""

from __future__ import annotations

import click

from draftrt.spec import Family

family_option = click.option(
    "--family",
    type=click.Choice([one.value for one in Family]),
    help="What the drafter is, where its config names another family or an unknown class.",
)
alignment_option = click.option(
    "--sample-from-anchor/--no-sample-from-anchor",
    default=None,
    help="Alignment, where the config leaves it open.",
)


def stated_family(family: str | None) -> Family | None:
    """Return the family that `family_option` was given; None where it was not."""
    return None if family is None else Family(family)
