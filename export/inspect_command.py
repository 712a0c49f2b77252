"""`draftrt inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.bundle import MANIFEST, Bundle, Verify
from draftrt.codec import to_json
from draftrt.export.checkpoint.decoder import say_left_out, try_decoder
from draftrt.export.checkpoint.describe import decoder_table, describe, table
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.inspect_bundle import bundle_table, describe_bundle
from draftrt.export.checkpoint.target import read_target
from draftrt.export.checkpoint.target_files import check_target_files
from draftrt.export.config.ignored import of_draft, of_target
from draftrt.family_cli import alignment_option, family_option, stated_family
from draftrt.ignore_cli import ignore_key_option
from draftrt.printable import printable
from draftrt.verify_cli import no_verify_option


@click.command("inspect")
@click.argument("draft", type=click.Path(path_type=Path))
@click.option("--target", type=click.Path(path_type=Path), help="Check it against this target.")
@alignment_option
@family_option
@ignore_key_option
@no_verify_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def inspect(
    draft: Path,
    target: Path | None,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    verify: Verify,
    as_json: bool,
) -> None:
    """Show every fact of the drafter in folder DRAFT, and where each was read.

    Of a bundle: its graphs, what of them is quantised, and its plans.
    """
    if (draft / MANIFEST).is_file():
        if target is not None or sample_from_anchor is not None or family or ignore_keys:
            raise click.UsageError(f"{draft} is a bundle: it was checked when it was made")
        _show_bundle(Bundle.open(draft, verify=verify), as_json=as_json)
        return
    if target is None and of_target(ignore_keys):
        raise click.UsageError("got --ignore-key target:... without --target")
    model = read_target(target, draft=draft) if target is not None else None
    loaded = load_drafter(
        draft,
        model,
        sample_from_anchor=sample_from_anchor,
        ignore_keys=of_draft(ignore_keys),
        family=stated_family(family),
    )
    warnings = list(loaded.spec.warnings)
    decoder = None
    if target is not None and model is not None:
        findings, remarks = check_target_files(target, model.spec)
        warnings += [finding.message for finding in findings] + remarks
        decoder, problem = try_decoder(model, of_target(ignore_keys))
        warnings += [] if problem is None else [say_left_out(problem)]
    if as_json:
        about = describe(loaded) | {"warnings": warnings}
        if model is not None:
            about["target_graph"] = None if decoder is None else to_json(decoder)
        click.echo(json.dumps(about, indent=1))
        return
    _show([*table(loaded), *(() if decoder is None else decoder_table(decoder))])
    for line in warnings:
        click.echo(printable(f"warning: {line}"), err=True)


def _show_bundle(bundle: Bundle, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(describe_bundle(bundle), indent=1))
    else:
        _show(list(bundle_table(bundle)))


def _show(rows: list[tuple[str, str, str]]) -> None:
    widths = [min(60, max(len(row[column]) for row in rows)) for column in (0, 1)]
    for fact, value, source in rows:
        line = f"{fact:<{widths[0]}}  {value:<{widths[1]}}  {source}"
        click.echo(printable(line).replace("\n", "\\n"))
