"""``draftrt validate reuse``: warm prompts against cold ones."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.backends import BACKENDS
from draftrt.cli_options import (
    CheckpointPath,
    InputPath,
    device_option,
    json_option,
    named_checkpoints,
    threads_option,
)
from draftrt.errors import printable
from draftrt.runtime.load import PORTS
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form


@click.command()
@click.argument("bundle", type=InputPath())
@click.option(
    "--cases",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Random prompts, each made of the text before it.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of them.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=24, show_default=True, help="Of each prompt."
)
@click.option(
    "--longest",
    type=click.IntRange(8),
    default=200,
    show_default=True,
    help="Most tokens of a prompt; up to a quarter of them is cut at every place.",
)
@click.option(
    "--prompts",
    type=InputPath(),
    help=f"What prompts are made of.  {FILE_HELP}  [default: a few built-in ones]",
)
@form_options
@click.option("--target", type=CheckpointPath(), help="Target's Hugging Face folder.")
@click.option("--target-port", type=click.Choice(PORTS), help="As in draftrt run.")
@click.option("--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], show_default=True)
@device_option
@threads_option
@json_option("Print the report as JSON.")
@named_checkpoints("target")
def reuse(
    bundle: Path,
    cases: int,
    seed: int,
    max_tokens: int,
    longest: int,
    prompts: Path | None,
    form: Form,
    target: Path | None,
    target_port: str | None,
    backend: str,
    device: str,
    threads: int,
    is_json: bool,
) -> None:
    """Decode prompts of BUNDLE on caches that hold another text, and alone, and compare their ids.

    A text is cut at every place; random prompts go on, edit, shorten or repeat the text before;
    some are closed early, some broken off inside a call.
    """
    from draftrt.errors import ParityError
    from draftrt.validate.reuse.reuse import ReuseSettings, as_json, as_text, check_reuse

    settings = ReuseSettings(
        cases=cases,
        seed=seed,
        max_tokens=max_tokens,
        longest=longest,
        prompts=prompts,
        form=form,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
    )
    found = check_reuse(bundle, settings, lambda line: click.echo(printable(line), err=True))
    click.echo(json.dumps(as_json(found), indent=1) if is_json else "\n".join(as_text(found)))
    if not found.is_same:
        raise ParityError(
            f"{bundle}: prompts behind other texts have other ids than computed whole",
            hint="--no-reuse-prefix decodes without; please report it with the seed",
        )
