"""``draftrt report``: what is known about a bundle, in one file to pass on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftrt.cli_options import InputPath, OutputFile, check_places, write_output
from draftrt.errors import printable
from draftrt.runtime.prompt_options import form_options
from draftrt.runtime.prompts import Form

if TYPE_CHECKING:
    from draftrt.validate.report.report import BundleReport

FILE = InputPath()


@click.command()
@click.argument("bundle", type=FILE)
@click.option("-o", "--out", required=True, type=OutputFile(), help="HTML file to write.")
@click.option("--markdown", type=OutputFile(), help="Write the same as Markdown.")
@click.option("--json", "json_file", type=OutputFile(), help="Write everything as JSON.")
@click.option(
    "--parity",
    type=FILE,
    help="JSON of `draftrt validate parity --json`.  [default: the check is made now]",
)
@click.option(
    "--no-parity", is_flag=True, help="Leave the parity check out; needs no PyTorch then."
)
@click.option("--bench", type=FILE, help="JSON of `draftrt bench --json`: acceptance and times.")
@click.option("--doctor", type=FILE, help="JSON of `draftrt doctor acceptance --json`.")
@click.option("--measure", is_flag=True, help="Make a short bench now, on ONNX Runtime.")
@click.option(
    "--prompts",
    type=FILE,
    help="Prompts for --measure, as for draftrt bench; the first four.  "
    "[default: a few built-in ones]",
)
@form_options
def report(
    bundle: Path,
    out: Path,
    markdown: Path | None,
    json_file: Path | None,
    parity: Path | None,
    no_parity: bool,
    bench: Path | None,
    doctor: Path | None,
    measure: bool,
    prompts: Path | None,
    form: Form,
) -> None:
    """Write one HTML file about BUNDLE: parity, acceptance, times, facts, provenance.

    Exit status: 0 written, 3 written and the parity check differs, 1 could not be made.
    """
    from draftrt.errors import ParityError
    from draftrt.validate.report.report import make_report

    if parity is not None and no_parity:
        raise click.UsageError("--parity and --no-parity exclude each other")
    if bench is not None and measure:
        raise click.UsageError("--bench and --measure exclude each other")
    if not measure and (prompts is not None or form != Form()):
        raise click.UsageError(
            "--prompts, --chat, --raw, --system and --template-var go with --measure"
        )
    check_places(
        {"--out": out, "--markdown": markdown, "--json": json_file},
        inputs=(parity, bench, doctor, prompts),
        bundle=bundle,
    )
    found = make_report(
        bundle,
        parity=parity,
        bench=bench,
        doctor=doctor,
        with_parity=not no_parity,
        with_bench=measure,
        prompts=prompts,
        form=form,
        report=lambda line: click.echo(printable(line), err=True),
    )
    _write(found, out, markdown, json_file)
    if found.verdict == "different":
        raise ParityError(f"{bundle}: the graph and pytorch differ", hint=f"see {out}")


def _write(found: BundleReport, out: Path, markdown: Path | None, json_file: Path | None) -> None:
    from draftrt.validate.report.render import to_html, to_markdown

    texts = {out: to_html(found)}
    if markdown is not None:
        texts[markdown] = to_markdown(found)
    if json_file is not None:
        texts[json_file] = json.dumps(found.to_json(), indent=1) + "\n"
    for path, text in texts.items():
        write_output(path, text)
        click.echo(f"report: {path}", err=True)
