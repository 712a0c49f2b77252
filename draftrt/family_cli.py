"""The option that says which family a drafter is."""

from __future__ import annotations

import click

from draftrt.spec import Family

family_option = click.option(
    "--family",
    type=click.Choice([one.value for one in Family]),
    help="What the drafter is, where its config names another family or an unknown class.",
)
