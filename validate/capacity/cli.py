"""``draftrt plan``: what a pair takes and where it fits, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from draftrt.bundle_files import MANIFEST, Verify
from draftrt.cli_options import (
    CheckpointPath,
    alignment_option,
    family_option,
    ignore_key_option,
    json_option,
    kept_for_option,
    named_checkpoints,
    no_verify_option,
    precision_option,
    prefer_option,
    quantize_option,
    stated_family,
)
from draftrt.codec import to_json
from draftrt.engines.devices import DEVICES, Device, find_device
from draftrt.engines.memory import GraphMemory
from draftrt.export.config.keys import of_draft
from draftrt.export.options import MOST_CONTEXT, ExportOptions, WeightMode
from draftrt.manifest import Costs
from draftrt.quantization import Part, Prefer, Scheme
from draftrt.runtime.targets.base import SNAPSHOT_BYTES
from draftrt.spec import Precision
from draftrt.validate.capacity.capacity import (
    ACCEPTANCES,
    Capacity,
    best_choice,
    break_even,
    fitting,
    plan_pair,
)

DOES_NOT_FIT = 3
OF_EXPORTS = (
    "max_context",
    "precision",
    "quantization",
    "sms",
    "prefer",
    "target_graph",
    "weights",
    "sample_from_anchor",
    "family",
    "ignore_keys",
)


@click.command("plan")
@click.argument("draft", required=False, type=CheckpointPath())
@click.option("--target", type=CheckpointPath(), help="Target checkpoint.")
@click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="Board or card to look at, or all of them. Repeatable.  [default: all]",
)
@click.option("--context", type=click.IntRange(min=1), help="Tokens to count caches for.")
@click.option(
    "--max-context", type=click.IntRange(4, MOST_CONTEXT), help="Rows of each cache, as exported."
)
@precision_option(Precision.FP16)
@quantize_option
@kept_for_option
@prefer_option
@click.option("--target-graph/--no-target-graph", default=None, help="As in draftrt export.")
@click.option(
    "--weights",
    type=click.Choice([mode.value for mode in WeightMode]),
    default="copy",
    show_default=True,
    help="As in draftrt export.",
)
@alignment_option
@family_option
@ignore_key_option
@no_verify_option
@json_option("Print JSON instead of a table.")
@named_checkpoints("draft", "target", headers_only=True)
@click.pass_context
def plan(
    ctx: click.Context,
    draft: Path | None,
    target: Path | None,
    names: tuple[str, ...],
    context: int | None,
    max_context: int | None,
    precision: str,
    quantization: dict[str, dict[Part, Scheme]],
    sms: tuple[int, ...] | None,
    prefer: str | None,
    target_graph: bool | None,
    weights: str,
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    verify: Verify,
    is_json: bool,
) -> None:
    """Tell memory, disk and break-even of drafter DRAFT and its target, or of the bundle DRAFT.

    With --target alone: of the target. Reads configs and tensor headers alone. With devices named,
    exit status 3 says that the pair fits on none of them.
    """
    of_drafters = sample_from_anchor is not None or family or of_draft(ignore_keys)
    if draft is None and (target is None or of_drafters or target_graph is False):
        raise click.UsageError("expected DRAFT, a bundle, or --target without options of drafters")
    if draft is not None and (draft / MANIFEST).is_file():
        _refuse_export_options(ctx, draft)
    options = ExportOptions(
        precision=Precision(precision),
        max_context=max_context,
        quantization=quantization,
        sms=sms or (),
        prefer=Prefer(prefer) if prefer else None,
        target_graph=target_graph,
        weights=WeightMode(weights),
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
        ignore_keys=frozenset(ignore_keys),
    )
    is_all = not names or "all" in names
    devices = list(DEVICES.values()) if is_all else [find_device(name) for name in names]
    found = plan_pair(draft, target, options, context, verify=verify)
    if is_json:
        click.echo(json.dumps(as_record(found, devices), indent=1))
    else:
        click.echo("\n".join(as_text(found, devices)))
    if not is_all and not any(fitting(found, devices).values()):
        ctx.exit(DOES_NOT_FIT)


def _refuse_export_options(ctx: click.Context, bundle: Path) -> None:
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in OF_EXPORTS
        and ctx.get_parameter_source(param.name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"{bundle} is a bundle: got {', '.join(given)}, which an export decides, expected "
            "none; give the drafter and --target to plan another export"
        )


def as_record(plan: Capacity, devices: Sequence[Device]) -> dict[str, Any]:
    """Return a plan as JSON data; sizes in bytes, times in milliseconds."""
    return {
        "name": plan.name,
        "precision": plan.precision,
        "context": plan.context,
        "graphs": {
            name: {**to_json(graph), "device": graph.device} for name, graph in plan.graphs.items()
        },
        "bundle_bytes": plan.bundle_bytes,
        "shared_bytes": plan.shared_bytes,
        "plans_bytes": sum(graph.plan for graph in plan.graphs.values()),
        "export_peak_bytes": plan.export_peak_bytes,
        "device_bytes": plan.device_bytes(),
        "remark": plan.remark,
        "devices": [_device_record(plan, device) for device in devices],
        "measured": {
            name: _advice(costs, plan.num_draft_tokens) for name, costs in plan.costs.items()
        },
    }


def _device_record(plan: Capacity, device: Device) -> dict[str, Any]:
    costs = plan.modelled(device)
    return {
        **to_json(device),
        "usable_bytes": device.usable_bytes,
        "fits": plan.device_bytes() <= device.usable_bytes,
        "builders": [one.value for one in device.builders(Precision(plan.precision))],
        "modelled": None if costs is None else _advice(costs, plan.num_draft_tokens),
    }


def _advice(costs: Costs, num_drafts: int) -> dict[str, Any]:
    return {
        "step_ms": costs.verify(1),
        "draft_ms": costs.draft_ms,
        "round_ms": costs.rounds(num_drafts)[num_drafts],
        "pays_from": break_even(costs, num_drafts),
        "best": [to_json(best_choice(costs, one, num_drafts)) for one in ACCEPTANCES],
    }


def as_text(plan: Capacity, devices: Sequence[Device]) -> list[str]:
    """Return a plan as lines."""
    lines = [f"{plan.name}, {plan.precision}, {plan.context} tokens of context", ""]
    lines.append(
        f"{'graph':<8}{'weights':>11}{'caches':>11}{'scratch':>11}{'plan':>11}{'build':>11}"
    )
    lines += [_graph_line(name, graph) for name, graph in plan.graphs.items()]
    lines += [
        "",
        f"device  {_size(plan.device_bytes())}: plans, caches and an estimate of scratch memory",
        f"disk    {_size(plan.bundle_bytes)} for the bundle"
        + (f", {_size(plan.shared_bytes)} of it shared by both graphs" if plan.shared_bytes else "")
        + f", {_size(sum(graph.plan for graph in plan.graphs.values()))} for plans",
        "host    "
        + (
            f"{_size(plan.export_peak_bytes)} peak to export, "
            if plan.export_peak_bytes is not None
            else ""
        )
        + f"{_size(max(graph.build for graph in plan.graphs.values()))} peak to build",
    ]
    if most := max(graph.snapshot for graph in plan.graphs.values()):
        kept = SNAPSHOT_BYTES // most
        lines.append(
            f"        {_size(most)} for each snapshot of the states, {kept} of them at most where "
            f"{_size(SNAPSHOT_BYTES)} are kept, as by default"
        )
    if plan.remark:
        lines.append(f"note    {plan.remark}")
    for name, costs in plan.costs.items():
        lines += ["", f"measured: {name}, behind {costs.context} tokens"]
        lines += _advice_lines(costs, plan.num_draft_tokens)
    if devices:
        lines += ["", *_device_lines(plan, devices)]
    if len(devices) == 1 and (costs_there := plan.modelled(devices[0])) is not None:
        lines += ["", f"modelled: {devices[0].name}, memory traffic alone"]
        lines += _advice_lines(costs_there, plan.num_draft_tokens)
    return lines


def _graph_line(name: str, graph: GraphMemory) -> str:
    sizes = (graph.weights, graph.caches, graph.scratch, graph.plan, graph.build)
    return f"{name:<8}" + "".join(f"{_size(size):>11}" for size in sizes)


def _device_lines(plan: Capacity, devices: Sequence[Device]) -> list[str]:
    head = f"{'device':<18}{'SM':>4}{'usable':>10}  {'fits':<5}{'builders':<26}"
    lines = [f"{head}{'step':>9}{'round':>9}  pays from"]
    for device in devices:
        fits = "yes" if plan.device_bytes() <= device.usable_bytes else "no"
        builders = ", ".join(one.value for one in device.builders(Precision(plan.precision)))
        line = f"{device.name:<18}{device.sm:>4}{_size(device.usable_bytes):>10}  {fits:<5}"
        line += f"{builders or f'none for {plan.precision}':<26}"
        costs = plan.modelled(device)
        if costs is not None:
            drafts = plan.num_draft_tokens
            line += f"{costs.verify(1):>6.1f} ms{costs.rounds(drafts)[drafts]:>6.1f} ms"
            line += f"  {break_even(costs, drafts):.2f} tokens a round"
        lines.append(line.rstrip())
    return lines


def _advice_lines(costs: Costs, num_drafts: int) -> list[str]:
    rounds = costs.rounds(num_drafts)
    lines = [
        f"  a step {costs.verify(1):.2f} ms; a round of {num_drafts} drafts {rounds[-1]:.2f} ms, "
        f"{costs.draft_ms:.2f} ms of them the drafter's",
        f"  all {num_drafts} drafts verified, it pays from an acceptance length of "
        f"{break_even(costs, num_drafts):.2f} on",
    ]
    for acceptance in ACCEPTANCES:
        best = best_choice(costs, acceptance, num_drafts)
        advice = (
            f"verify {best.num_drafts} drafts: {best.length:.2f} tokens a round, "
            f"{best.speedup:.2f} x plain decoding"
            if best.num_drafts
            else "decode plainly"
        )
        lines.append(f"  if {100 * acceptance:.0f} % of drafts are kept: {advice}")
    return lines


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"
