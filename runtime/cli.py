"""``draftrt run``: decode prompts with a bundle and its target."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from draftrt.backends import BACKENDS
from draftrt.bundle_files import Verify
from draftrt.cli_options import (
    CheckpointPath,
    FiniteRange,
    InputPath,
    OutputFile,
    device_option,
    ignore_memory_option,
    json_option,
    named_checkpoints,
    no_verify_option,
    threads_option,
)
from draftrt.errors import printable
from draftrt.runtime.decoding.grammar import Grammar, read_text
from draftrt.runtime.decoding.options import (
    PROPOSALS,
    SCHEDULES,
    DecodeOptions,
)
from draftrt.runtime.decoding.stats import FinishReason, Stats
from draftrt.runtime.load import PORTS, load
from draftrt.runtime.pair import Completion, Pair
from draftrt.runtime.prompt_options import FILE_HELP, TEXT, form_options
from draftrt.runtime.prompts import (
    STDIN,
    Form,
    Request,
    asked,
    read_prompts,
    read_whole,
    room_problem,
)
from draftrt.runtime.targets.graph import GraphTarget

F = TypeVar("F", bound=Callable[..., None])


def decode_options(function: F) -> F:
    """Give a command the options of decoding: one ``options``, and ``stop``."""

    @click.option(
        "--max-tokens",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Most new tokens.",
    )
    @click.option(
        "--min-tokens", type=click.IntRange(0), default=0, help="No end before that many."
    )
    @click.option(
        "--stop", multiple=True, type=TEXT, help="String that ends the text; may be repeated."
    )
    @click.option(
        "--ignore-eos", is_flag=True, help="Go on behind the target's end-of-text tokens."
    )
    @click.option(
        "--temperature", type=FiniteRange(0), default=0.0, show_default=True, help="0 is greedy."
    )
    @click.option(
        "--top-k", type=click.IntRange(0), default=0, help="Keep the k likeliest; 0 is off."
    )
    @click.option(
        "--top-p",
        type=FiniteRange(0, 1, min_open=True),
        default=1.0,
        help="Keep the likeliest of this probability together; 1 is off.",
    )
    @click.option(
        "--min-p",
        type=FiniteRange(0, 1, max_open=True),
        default=0.0,
        help="Drop what is below this share of the likeliest; 0 is off.",
    )
    @click.option(
        "--repetition-penalty",
        type=FiniteRange(0, min_open=True),
        default=1.0,
        help="Above 1 discourages what was already said.",
    )
    @click.option(
        "--proposal",
        type=click.Choice(PROPOSALS),
        default="argmax",
        show_default=True,
        help="Drafts are the most probable ones, or draws at the temperature.",
    )
    @click.option("--seed", type=click.IntRange(0), help="Makes sampling reproducible.")
    @click.option(
        "--confidence-threshold",
        type=FiniteRange(0, 1),
        default=0.0,
        help="Verify only drafts before the first confidence below it; 0 is off.",
    )
    @click.option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        default="auto",
        show_default=True,
        help="auto: the drafts that pay by what rounds brought so far, the drafter's, some found "
        "in the text, or none. all: every draft of the drafter. survival: as many as pay by their "
        "confidences (needs draftrt bench --calibrate).",
    )
    @click.option(
        "--reuse-prefix/--no-reuse-prefix",
        default=True,
        show_default=True,
        help="Begin behind what a prompt shares with the text before, or compute all of it.",
    )
    @functools.wraps(function)
    def wrapped(*args: Any, **given: Any) -> None:
        chosen = {
            one.name: given.pop(one.name) for one in fields(DecodeOptions) if one.name in given
        }
        if chosen["min_tokens"] > chosen["max_tokens"]:
            raise click.UsageError(
                f"--min-tokens {chosen['min_tokens']} is more than --max-tokens "
                f"{chosen['max_tokens']}"
            )
        if given.pop("ignore_eos"):
            chosen["stop_ids"] = frozenset()
        _warn_of_ignored(chosen["temperature"], is_plain=given.get("plain", False))
        function(*args, options=DecodeOptions(**chosen), **given)

    return wrapped  # type: ignore[return-value]


OF_DRAWS = ("seed", "top_k", "top_p", "min_p", "proposal")
OF_DRAFTS = ("proposal", "schedule", "confidence_threshold")


def _warn_of_ignored(temperature: float, *, is_plain: bool) -> None:
    """Say which options were given and change nothing beside the others."""
    context = click.get_current_context()
    for names, is_so, why in (
        (OF_DRAWS, temperature == 0, "at temperature 0, where nothing is drawn"),
        (OF_DRAFTS, is_plain and temperature > 0, "with --plain, which drafts nothing"),
        (OF_DRAFTS[1:], is_plain and temperature == 0, "with --plain, which drafts nothing"),
    ):
        given = [
            f"--{name.replace('_', '-')}"
            for name in names
            if is_so and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        if given:
            click.echo(f"warning: {', '.join(given)}: no effect {why}", err=True)


def grammar_options(function: F) -> F:
    """Give a command the options that say what its output must obey: one ``grammar`` or None."""

    @click.option("--json-schema", type=InputPath(), help="File with the output's JSON schema.")
    @click.option("--regex", type=TEXT, help="Regular expression that the whole output is.")
    @click.option("--lark", type=InputPath(), help="File with a Lark grammar of the output.")
    @functools.wraps(function)
    def wrapped(
        *args: Any, json_schema: Path | None, regex: str | None, lark: Path | None, **given: Any
    ) -> None:
        if sum(one is not None for one in (json_schema, regex, lark)) > 1:
            raise click.UsageError("--json-schema, --regex and --lark exclude each other")
        grammar = None
        if regex is not None:
            grammar = Grammar.regex(regex)
        elif lark is not None:
            grammar = Grammar.lark(read_text(lark))
        elif json_schema is not None:
            grammar = Grammar.json_schema(read_text(json_schema))
        function(*args, grammar=grammar, **given)

    return wrapped  # type: ignore[return-value]


@click.command()
@click.argument("bundle", type=InputPath())
@click.option(
    "--prompt",
    "prompts",
    type=TEXT,
    multiple=True,
    help="What to say to the target; - reads standard input. May be repeated.",
)
@click.option(
    "--prompt-file",
    "files",
    type=InputPath(),
    multiple=True,
    help="File whose whole text is a prompt, or JSON lines (.jsonl). May be repeated.",
)
@click.option(
    "--prompts",
    "lists",
    type=InputPath(),
    multiple=True,
    help=f"{FILE_HELP} May be repeated.",
)
@form_options
@click.option(
    "--target",
    type=CheckpointPath(),
    help="Target's Hugging Face folder.  [default: the one the bundle was exported from]",
)
@click.option(
    "--target-port",
    type=click.Choice(PORTS),
    help="How the target runs.  [default: graph where the bundle has one, else hf]",
)
@decode_options
@grammar_options
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="What runs the bundle's graphs; the TensorRTs run plans of draftrt build.",
)
@device_option
@click.option("--plain", is_flag=True, help="Decode with the target alone.")
@click.option(
    "--prefix",
    type=InputPath(),
    help="File of --save-prefix: what a prompt shares with it is not computed again.",
)
@click.option(
    "--save-prefix",
    type=OutputFile(),
    help="Keep what the caches hold of the last prompt and its text in a file.",
)
@threads_option
@click.option(
    "--map-weights",
    is_flag=True,
    help="Least memory: read weights where their file is mapped, shared tables once; slower.",
)
@ignore_memory_option
@no_verify_option
@json_option("Print a JSON object a prompt instead of text.")
@named_checkpoints("target")
def run(
    bundle: Path,
    prompts: tuple[str, ...],
    files: tuple[Path, ...],
    lists: tuple[Path, ...],
    form: Form,
    target: Path | None,
    target_port: str | None,
    options: DecodeOptions,
    stop: tuple[str, ...],
    grammar: Grammar | None,
    backend: str,
    device: str,
    plain: bool,
    prefix: Path | None,
    save_prefix: Path | None,
    threads: int,
    map_weights: bool,
    ignore_memory: bool,
    verify: Verify,
    is_json: bool,
) -> None:
    """Decode prompts with the drafter and target of BUNDLE.

    A prompt goes through the target's chat template where its tokenizer has one. Text goes to
    standard output; the form of the prompts, acceptance and times to standard error.
    """
    requests = _requests(prompts, files, lists)
    with load(
        bundle,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
        map_weights=map_weights,
        verify=verify is not Verify.NONE,
        prefix=prefix,
        ignore_memory=ignore_memory,
    ) as pair:
        form = form.settled(pair.template, requests)
        every = form.encode(pair.encode, requests)
        if not plain and (
            problem := room_problem(pair.decoder, requests, every, options.max_tokens or 0)
        ):
            raise problem
        for note in form.notes(pair.template, requests):
            click.echo(printable(note), err=True)
        for number, ids in enumerate(every, start=1):
            if len(every) > 1:
                label = printable(requests[number - 1].label.replace("\n", " ")[:60])
                click.echo(f"prompt {number} of {len(every)}: {label}", err=True)
            if is_json:
                done = pair.generate(ids, options, stop=stop, grammar=grammar, speculate=not plain)
                click.echo(json.dumps(_report(done, form)))
                _explain(pair, done.token_ids, done.finish)
            else:
                if number > 1:
                    click.echo()
                _print_text(pair, ids, options, stop, grammar, speculate=not plain)
        if save_prefix is not None:
            count = pair.save_prefix(save_prefix)
            click.echo(f"saved: {count} tokens in {printable(str(save_prefix))}", err=True)


def _requests(
    prompts: tuple[str, ...], files: tuple[Path, ...], lists: tuple[Path, ...]
) -> list[Request]:
    """Return what is asked: first the prompts, then those of the files."""
    if not (prompts or files or lists):
        raise click.UsageError("Missing option '--prompt', '--prompt-file' or '--prompts'.")
    sources = [*prompts, *map(str, files), *map(str, lists)]
    if sources.count(STDIN) > 1:
        raise click.UsageError("got - more than once, expected it once: standard input ends")
    texts = [read_whole(one) if one == STDIN else [asked(one)] for one in prompts]
    return [*chain(*texts, *map(read_whole, files), *map(read_prompts, lists))]


def _print_text(
    pair: Pair,
    ids: Sequence[int],
    options: DecodeOptions,
    stop: tuple[str, ...],
    grammar: Grammar | None,
    *,
    speculate: bool,
) -> None:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed
    stats, tokens = Stats(), list[int]()
    finish: FinishReason | None = None
    for chunk in pair.stream(ids, options, stop=stop, grammar=grammar, speculate=speculate):
        click.echo(printable(chunk.text) if is_terminal else chunk.text, nl=False)  # echo flushes
        stats.add(chunk.round)
        tokens += chunk.token_ids
        finish = chunk.finish
    click.echo()
    _explain(pair, tokens, finish)
    click.echo(_figures(pair, stats), err=True)


def explanation(pair: Pair, tokens: Sequence[int], finish: FinishReason | None) -> str:
    """Return why nothing came, where the first token ended the text; else an empty text."""
    if len(tokens) != 1 or finish != "stop" or tokens[0] not in pair.stop_ids:
        return ""
    return (
        f"nothing came: the first token is {printable(pair.token_name(tokens[0]))}, which ends the "
        "text; --ignore-eos or --min-tokens goes on behind it"
    )


def _explain(pair: Pair, tokens: Sequence[int], finish: FinishReason | None) -> None:
    if why := explanation(pair, tokens, finish):
        click.echo(why, err=True)


def _figures(pair: Pair, stats: Stats) -> str:
    drafter = pair.drafter
    held = [] if drafter is None else [("drafter", drafter.cache_bytes_per_token, drafter.capacity)]
    if isinstance(pair.target, GraphTarget):
        held.append(("target", pair.target.cache_bytes_per_token, pair.target.max_context))
    lines = [
        f"{name} cache: {size:,} bytes a token, {most:,} tokens at most"
        for name, size, most in held
    ]
    return "\n".join([stats.summary(), *lines])


def _report(done: Completion, form: Form) -> dict[str, object]:
    return {
        "form": form.describe(),
        "text": done.text,
        "prompt_ids": done.prompt_ids,
        "token_ids": done.token_ids,
        "finish": done.finish,
        **done.stats.to_json(),
    }
