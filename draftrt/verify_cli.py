"""The option of every command that opens a bundle to run, show or measure it."""

from __future__ import annotations

import click

from draftrt.bundle_files import Verify


def _kind(ctx: click.Context, param: click.Parameter, value: bool) -> Verify:
    return Verify.NONE if value else Verify.REMEMBERED


no_verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    callback=_kind,
    help="Compare the sizes of the bundle's files alone, not their content.",
)
