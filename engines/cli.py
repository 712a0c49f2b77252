"""``draftrt build``: one plan of a bundle, and what is known about it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from draftrt.bundle import Bundle
from draftrt.cli_options import (
    FiniteRange,
    InputPath,
    ignore_memory_option,
    json_option,
    sm_numbers,
)
from draftrt.codec import to_json
from draftrt.engines.build import BuildResult, build_plan
from draftrt.engines.capabilities import FACTS, Backend
from draftrt.engines.devices import Device, find_device
from draftrt.engines.memory import check_fits
from draftrt.engines.options import BuildOptions
from draftrt.engines.pair import ALL, GRAPHS, chosen_graphs, next_lines
from draftrt.errors import ChoiceError, SpecError
from draftrt.signature import DimRange

_VALID_SMS = "; ".join(
    f"{backend.value}: {', '.join(map(str, facts.sms))}" for backend, facts in FACTS.items()
)


def parse_sms(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Return ``86,89,120`` as numbers, or fail as wrong usage."""
    sms = sm_numbers(ctx, param, value)
    known = {sm for facts in FACTS.values() for sm in facts.sms}
    if strange := [sm for sm in sms or () if sm not in known]:
        names = ", ".join(f"SM{sm}" for sm in strange)
        raise click.BadParameter(f"got {names}, expected of {_VALID_SMS}", ctx, param)
    return sms


def parse_dimensions(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, DimRange]:
    """Return each ``NAME=MIN:OPT:MAX`` as a range, or fail as wrong usage."""
    ranges = {}
    for value in values:
        match = re.fullmatch(r"(\w+)=(\d+):(\d+):(\d+)", value)
        if match is None:
            message = f"got {value!r}, expected NAME=MIN:OPT:MAX such as T=1:8:512"
            raise click.BadParameter(message, ctx, param)
        name, (low, best, high) = match[1], (int(match[index]) for index in (2, 3, 4))
        if name in ranges:
            raise click.BadParameter(f"got {name} twice, expected each size once", ctx, param)
        try:
            ranges[name] = DimRange(min=low, opt=best, max=high)
        except SpecError as error:
            raise click.BadParameter(f"{name}: {error.message}", ctx, param) from error
    return ranges


@click.command()
@click.argument("bundle", type=InputPath())
@click.option(
    "--backend",
    type=click.Choice([backend.value for backend in Backend]),
    default=Backend.TENSORRT_RTX.value,
    show_default=True,
    help="Builder. tensorrt builds only for the GPU of this machine.",
)
@click.option(
    "--sm",
    "sms",
    metavar="SM,...",
    callback=parse_sms,
    help=f"SMs that the plan runs on ({_VALID_SMS}).",
)
@click.option(
    "--graph",
    type=click.Choice(GRAPHS),
    default=ALL,
    show_default=True,
    help="Graphs of the bundle to build: the drafter's, the target's, or both.",
)
@click.option(
    "--dim",
    "dimensions",
    metavar="NAME=MIN:OPT:MAX",
    multiple=True,
    callback=parse_dimensions,
    help="Narrow a size; plans are tuned for OPT. Repeatable.",
)
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True),
    default=1800,
    show_default=True,
    help="Seconds.",
)
@click.option("--workspace", type=click.IntRange(min=1), help="Most scratch memory of a layer, MB.")
@click.option("--per-sm", is_flag=True, help="One plan for each SM instead of one for all.")
@click.option(
    "--strip",
    is_flag=True,
    help="Leave the weights out of the plan; needs a GPU, here and where it is loaded.",
)
@click.option(
    "--device",
    "device_name",
    metavar="NAME",
    help="What is to run it (`draftrt plan --device all` lists them): chooses the SM, and a bundle "
    "that does not fit there is refused.",
)
@ignore_memory_option
@click.option("--force", is_flag=True, help="Build even if the same plan is there.")
@json_option("Print the plans' records as a JSON list.")
def build(
    bundle: Path,
    backend: str,
    sms: tuple[int, ...] | None,
    graph: str,
    dimensions: dict[str, DimRange],
    timeout: float,
    workspace: int | None,
    per_sm: bool,
    strip: bool,
    device_name: str | None,
    ignore_memory: bool,
    force: bool,
    is_json: bool,
) -> None:
    """Build TensorRT plans from the graphs of BUNDLE; TensorRT-RTX needs no GPU for it.

    No plan is loaded or run: that takes a GPU it was built for.
    """
    device = None if device_name is None else find_device(device_name)
    asked_by = "" if device is None or sms else device.name
    options = BuildOptions(
        backend=Backend(backend),
        sms=_chosen_sms(Backend(backend), sms, device),
        device=asked_by,
        workspace_bytes=None if workspace is None else workspace * 2**20,
        strip=strip,
        timeout_s=timeout,
    )
    opened = Bundle.open(bundle)
    names = chosen_graphs(opened, graph)
    ranges = _ranges(opened, names, dimensions)
    results = []
    for index, name in enumerate(names):
        check = None if ignore_memory else _fits(names[index:], device)
        for wanted in [(sm,) for sm in options.sms] if per_sm else [options.sms]:
            chosen = replace(options, sms=wanted, graph=name, dimensions=ranges[name])
            results.append(
                build_plan(bundle, chosen, force=force, on_tick=_show_elapsed, check=check)
            )
            if sys.stderr.isatty():
                click.echo("\r\033[K", nl=False, err=True)
            if not is_json:
                click.echo(as_text(results[-1]))
    if is_json:
        click.echo(json.dumps([as_record(result) for result in results], indent=1))
    else:
        click.echo("\n".join(next_lines(results[-1].bundle, options.backend, options.sms)))


def _fits(names: Sequence[str], device: Device | None) -> Callable[[Bundle], None]:
    """Return what refuses the builds still to be done where one does not fit."""
    return lambda bundle: check_fits(bundle, names, device)


def _ranges(
    bundle: Bundle, names: Sequence[str], dimensions: Mapping[str, DimRange]
) -> dict[str, dict[str, DimRange]]:
    """Return the sizes to narrow of each graph; a size belongs to the graphs that have it."""
    known = {name: bundle.graph(name).signature.dimensions for name in names}
    ranges = {
        name: {size: span for size, span in dimensions.items() if size in has}
        for name, has in known.items()
    }
    strange = sorted(size for size in dimensions if not any(size in has for has in known.values()))
    if strange:
        there = "; ".join(f"{name}: {sorted(has)}" for name, has in known.items())
        raise ChoiceError(
            f"no dimension {', '.join(map(repr, strange))} in the graphs' signatures, there are "
            f"{there}",
            hint="leave it out, or name one of those with --dim",
        )
    return ranges


def _chosen_sms(
    backend: Backend, sms: tuple[int, ...] | None, device: Device | None
) -> tuple[int, ...]:
    """Return the SMs to build for; nothing where the backend takes that of this machine's GPU."""
    if FACTS[backend].needs_gpu:
        return sms or ()
    if sms is None:
        if device is None:
            raise click.UsageError(f"--sm is missing: the SMs to build for ({_VALID_SMS})")
        return (device.sm,)
    if device is not None and device.sm not in sms:
        raise click.UsageError(
            f"--device {device.name} has SM{device.sm}: got --sm {','.join(map(str, sms))}, "
            f"expected {device.sm} among them; without --sm it is the device's own"
        )
    return sms


def _show_elapsed(seconds: float) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rbuilding {seconds:4.0f} s", nl=False, err=True)


def as_record(result: BuildResult) -> dict[str, object]:
    """Return a result as JSON data: the folder, the manifest's record, and what is new.

    The counts of attention layers are null when nothing was built.
    """
    reply = result.reply
    return {
        "bundle": str(result.bundle.path),
        "is_cached": result.is_cached,
        **to_json(result.entry),
        "num_attentions": None if reply is None else reply.num_attentions,
        "num_decomposed": None if reply is None else reply.num_decomposed,
    }


def as_text(result: BuildResult) -> str:
    """Return a result as text for people."""
    entry = result.entry
    verb = "already built, same graph, options and version:" if result.is_cached else "built"
    sms = ", ".join(str(sm) for sm in entry.sms)
    lines = [
        f"{verb} {result.bundle.file(entry.file)}",
        f"  backend    {entry.backend} {entry.backend_version}, SM {sms}",
        f"  size       {entry.size_bytes / 1e6:.1f} MB",
        f"  build      {entry.build_seconds:.1f} s, {entry.peak_rss_bytes / 1e6:.0f} MB of memory",
    ]
    if result.reply is not None and result.reply.num_decomposed:
        lines.append(
            f"  attention  {result.reply.num_decomposed} of {result.reply.num_attentions} layers "
            "have no fused kernel for their type and size"
        )
    lines.append(f"  log        {result.bundle.file(entry.log)}")
    lines.append("  not run    a plan loads only on a GPU that it was built for")
    return "\n".join(lines)
