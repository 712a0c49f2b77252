"""``draftrt run``: decode a prompt with a bundle and its target."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftrt.number_cli import FiniteRange
from draftrt.runtime.graph_target import GraphTarget
from draftrt.runtime.load import BACKENDS, PORTS, load
from draftrt.runtime.options import (
    MOST_THREADS,
    PROPOSALS,
    SCHEDULES,
    DecodeOptions,
    ProposalKind,
    ScheduleKind,
)
from draftrt.runtime.pair import Completion, Pair, Prompt
from draftrt.runtime.stats import Stats


def refuse_empty(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the texts, or fail as wrong usage where one is empty."""
    if "" in values:
        raise click.BadParameter("got an empty text, expected at least one character", ctx, param)
    return values


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompt", required=True, help="Text to go on with.")
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    help="Target's Hugging Face folder.  [default: the one the bundle was exported from]",
)
@click.option(
    "--target-port",
    type=click.Choice(PORTS),
    help="How the target runs.  [default: graph where the bundle has one, else hf]",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Most new tokens."
)
@click.option("--min-tokens", type=click.IntRange(0), default=0, help="No end before that many.")
@click.option(
    "--stop",
    multiple=True,
    callback=refuse_empty,
    help="String that ends the text; may be repeated.",
)
@click.option("--ignore-eos", is_flag=True, help="Go on behind the target's end-of-text tokens.")
@click.option(
    "--temperature", type=FiniteRange(0), default=0.0, show_default=True, help="0 is greedy."
)
@click.option("--top-k", type=click.IntRange(0), default=0, help="Keep the k likeliest; 0 is off.")
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
    default="all",
    show_default=True,
    help="Verify all drafts, or as many as pay (needs draftrt bench --calibrate).",
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="What runs the bundle's graphs; the TensorRTs run plans of draftrt build.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where ONNX Runtime and a Hugging Face target run.",
)
@click.option("--chat", is_flag=True, help="Wrap the prompt in the target's chat template.")
@click.option("--plain", is_flag=True, help="Decode with the target alone.")
@click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads of each model.",
)
@click.option(
    "--map-weights",
    is_flag=True,
    help="Least memory: read weights where their file is mapped, shared tables once; slower.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def run(
    bundle: Path,
    prompt: str,
    target: Path | None,
    target_port: str | None,
    max_tokens: int,
    min_tokens: int,
    stop: tuple[str, ...],
    ignore_eos: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    proposal: ProposalKind,
    seed: int | None,
    confidence_threshold: float,
    schedule: ScheduleKind,
    backend: str,
    device: str,
    chat: bool,
    plain: bool,
    threads: int,
    map_weights: bool,
    as_json: bool,
) -> None:
    """Decode a prompt with the drafter and target of BUNDLE.

    Text goes to standard output, acceptance and times to standard error.
    """
    if min_tokens > max_tokens:
        raise click.UsageError(f"--min-tokens {min_tokens} is more than --max-tokens {max_tokens}")
    options = DecodeOptions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        proposal=proposal,
        seed=seed,
        confidence_threshold=confidence_threshold,
        schedule=schedule,
        stop_ids=frozenset() if ignore_eos else None,
    )
    wanted: Prompt = [{"role": "user", "content": prompt}] if chat else prompt
    with load(
        bundle,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
        map_weights=map_weights,
    ) as pair:
        if as_json:
            done = pair.generate(wanted, options, stop=stop, speculate=not plain)
            click.echo(json.dumps(_report(done)))
        else:
            stats = _print_text(pair, wanted, options, stop, speculate=not plain)
            click.echo(_figures(pair, stats), err=True)


def _print_text(
    pair: Pair, prompt: Prompt, options: DecodeOptions, stop: tuple[str, ...], *, speculate: bool
) -> Stats:
    stats = Stats()
    for chunk in pair.stream(prompt, options, stop=stop, speculate=speculate):
        click.echo(chunk.text, nl=False)  # echo flushes
        stats.add(chunk.round)
    click.echo()
    return stats


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


def _report(done: Completion) -> dict[str, object]:
    return {
        "text": done.text,
        "prompt_ids": done.prompt_ids,
        "token_ids": done.token_ids,
        "finish": done.finish,
        **done.stats.to_json(),
    }
