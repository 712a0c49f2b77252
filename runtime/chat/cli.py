"""``draftrt chat``: talk with a bundle."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from draftrt.backends import BACKENDS
from draftrt.bundle_files import Verify
from draftrt.cli_options import (
    CheckpointPath,
    InputPath,
    device_option,
    named_checkpoints,
    no_verify_option,
    threads_option,
)
from draftrt.errors import DraftrtError, printable
from draftrt.runtime.chat.conversation import Conversation
from draftrt.runtime.chat.terminal import DIM, KEPT, Lines, coloured
from draftrt.runtime.cli import decode_options, explanation
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import FinishReason, Stats
from draftrt.runtime.load import PORTS, load
from draftrt.runtime.pair import Chunk, Pair
from draftrt.runtime.prompt_options import form_options
from draftrt.runtime.prompts import Form

HELP = """\
/reset         forget what was said
/system TEXT   a message of the system from now on; without TEXT none
/plain         answer with the target alone; again: with the drafter
/help          this list
/quit          leave, as Ctrl-D does
Ctrl-C ends an answer and keeps what came. A line that ends in \\ goes on in the next one; a message
between lines with \"\"\" may have many. //TEXT says /TEXT."""


@click.command("chat", context_settings={"default_map": {"max_tokens": 1024}})
@click.argument("bundle", type=InputPath())
@form_options
@click.option(
    "--target",
    type=CheckpointPath(),
    help="Target's Hugging Face folder.  [default: the one the bundle was exported from]",
)
@click.option("--target-port", type=click.Choice(PORTS), help="As in draftrt run.")
@decode_options
@click.option(
    "--show-drafts",
    is_flag=True,
    help="Colour the tokens that were drafted and kept; the target's own stay as they are.",
)
@click.option("--plain", is_flag=True, help="Begin with the target alone.")
@click.option("--prefix", type=InputPath(), help="File of draftrt run --save-prefix.")
@click.option("--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], show_default=True)
@device_option
@threads_option
@no_verify_option
@named_checkpoints("target")
def chat(
    bundle: Path,
    form: Form,
    target: Path | None,
    target_port: str | None,
    options: DecodeOptions,
    stop: tuple[str, ...],
    show_drafts: bool,
    plain: bool,
    prefix: Path | None,
    backend: str,
    device: str,
    threads: int,
    verify: Verify,
) -> None:
    """Talk with the drafter and target of BUNDLE; /help lists what it knows.

    Where standard input is no terminal each of its lines is said, one behind the other's answer.
    Answers go to standard output, figures to standard error.
    """
    with load(
        bundle,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
        verify=verify is not Verify.NONE,
        prefix=prefix,
    ) as pair:
        talk = Conversation(form.settled(pair.template, ()), speculate=not plain)
        lines = Lines()
        if lines.is_terminal:
            told = "" if talk.form.is_chat else "; no chat template: texts go on as they are"
            _note(f"{bundle.name}: {pair.runs_as}; /help lists commands{told}")
        with _interruptible():
            _talk(pair, talk, lines, options, stop, show_drafts=show_drafts)


def _talk(
    pair: Pair,
    talk: Conversation,
    lines: Lines,
    options: DecodeOptions,
    stop: tuple[str, ...],
    *,
    show_drafts: bool,
) -> None:
    while True:
        try:
            said = lines.message()
        except KeyboardInterrupt:
            click.echo()
            continue
        if said is None or said == "/quit":
            return
        if not said:
            continue
        if said.startswith("/") and not said.startswith("//"):
            _command(talk, said)
            continue
        try:
            _answer(pair, talk, said.removeprefix("/"), options, stop, show_drafts=show_drafts)
        except DraftrtError as error:
            if not lines.is_terminal:
                raise
            click.echo(f"Error: {printable(str(error))}", err=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let every Ctrl-C raise; else the first one ends the command (`ending_in_order`)."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _command(talk: Conversation, said: str) -> None:
    """Do what a line that begins with a slash asks for."""
    name, _, rest = said.partition(" ")
    if name == "/help":
        _note(HELP)
    elif name == "/reset":
        talk.reset()
        _note("nothing was said")
    elif name == "/system" and not talk.form.is_chat:
        _note("no chat template: there is no message of the system")
    elif name == "/system":
        talk.form = replace(talk.form, system=rest.strip() or None)
        _note(f"system: {rest.strip() or 'none'}")
    elif name == "/plain":
        talk.speculate = not talk.speculate
        _note("with the drafter" if talk.speculate else "with the target alone")
    else:
        _note(f"no command {name}; /help lists them, and /{said} says it")


def _answer(
    pair: Pair,
    talk: Conversation,
    said: str,
    options: DecodeOptions,
    stop: tuple[str, ...],
    *,
    show_drafts: bool,
) -> None:
    """Print an answer as it comes, and a line about it."""
    stats, tokens = Stats(), list[int]()
    finish: FinishReason | None = None
    was_interrupted = False
    try:
        with closing(talk.answer(pair, said, options, stop)) as chunks:
            for chunk in chunks:
                click.echo(_shown(chunk, show_drafts=show_drafts), nl=False)
                stats.add(chunk.round)
                tokens += chunk.token_ids
                finish = chunk.finish
    except KeyboardInterrupt:
        was_interrupted = True
    click.echo()
    why = explanation(pair, tokens, finish)
    ends = ["interrupted"] if was_interrupted else [why] if why else []
    if finish == "length":
        ends = ["cut at --max-tokens, or where the caches are full"]
    _note(" · ".join([*figures(pair, stats, speculates=talk.speculate), *ends]))


def _shown(chunk: Chunk, *, show_drafts: bool) -> str:
    """Return a piece of an answer as the terminal shows it."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    pieces = [printable(piece) if is_terminal else piece for piece in chunk.pieces]
    if not show_drafts:
        return "".join(pieces)
    kept = min(chunk.round.num_accepted, len(pieces))
    return coloured("".join(pieces[:kept]), KEPT, sys.stdout) + "".join(pieces[kept:])


def figures(pair: Pair, stats: Stats, *, speculates: bool) -> list[str]:
    """Return what is told behind an answer: speed, gain over plain decoding, acceptance."""
    told = [f"{stats.tokens_per_s:.1f} tokens/s"]
    if speculates and stats.accepted:
        if pair.costs is not None:
            plain = 1e3 / pair.costs.verify(1)
            told.append(f"{stats.tokens_per_s / plain:.1f} x plain")
        else:
            told.append("x plain unknown (draftrt bench --calibrate)")
        told.append(f"acceptance length {stats.acceptance_length:.2f}")
    if stats.reused_tokens:
        told.append(f"{stats.reused_tokens} tokens reused")
    return told


def _note(text: str) -> None:
    for line in text.splitlines():
        click.echo(coloured(printable(line), DIM, sys.stderr), err=True)
