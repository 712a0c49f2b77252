"""``draftrt doctor``: why drafts are not accepted.

Exit status: 0 nothing better found, 3 a change would raise acceptance or something is suspicious,
1 could not be examined, 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.number_cli import FiniteRange
from draftrt.printable import printable
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form

FOLDER = click.Path(path_type=Path)


@click.group()
def doctor() -> None:
    """Find out why a drafter gains less than it should.

    Exit status: 0 nothing better found, 3 a change would raise acceptance or something is
    suspicious, 1 could not be examined, 2 usage.
    """


@doctor.command()
@click.argument("bundle", type=FOLDER)
@click.option("--prompts", required=True, type=FOLDER, help=FILE_HELP)
@click.option("--draft", type=FOLDER, help="Drafter's checkpoint, to be read anew and compared.")
@click.option(
    "--target",
    type=FOLDER,
    help="Target's Hugging Face folder, for --draft and for a bundle without a target graph.  "
    "[default: the folder it was exported from]",
)
@click.option(
    "--num-prompts",
    type=click.IntRange(3),
    default=24,
    show_default=True,
    help="Take the first N; intervals are taken over prompts.",
)
@click.option(
    "--max-tokens", type=click.IntRange(8), default=96, show_default=True, help="Of each prompt."
)
@form_options
@click.option(
    "--forms/--no-forms",
    default=True,
    show_default=True,
    help="Try the prompts in their other forms too, with the chat template or without.",
)
@click.option(
    "--expected-length",
    type=FiniteRange(1),
    help="Acceptance length (tokens a round) that the drafter's card states.",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def acceptance(
    bundle: Path,
    prompts: Path,
    draft: Path | None,
    target: Path | None,
    num_prompts: int,
    max_tokens: int,
    form: Form,
    forms: bool,
    expected_length: float | None,
    is_json: bool,
) -> None:
    """Measure the acceptance of BUNDLE and try the usual suspects (docs/doctor.md)."""
    from draftrt.errors import ParityError
    from draftrt.validate.doctor.doctor_report import as_json, as_text
    from draftrt.validate.doctor.examine import DoctorOptions, examine

    options = DoctorOptions(
        target=target,
        draft=draft,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        form=form,
        with_forms=forms,
        expected_length=expected_length,
    )
    found = examine(bundle, prompts, options, lambda line: click.echo(printable(line), err=True))
    click.echo(json.dumps(as_json(found), indent=1) if is_json else "\n".join(as_text(found)))
    if not found.is_healthy:
        raise ParityError(
            f"{bundle}: acceptance is not what it could be",
            hint="docs/doctor.md says what to do about each finding",
        )
