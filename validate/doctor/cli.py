"""``draftrt doctor``: why drafts are not accepted.

Exit status: 0 nothing better found, 3 a change would raise acceptance or something is suspicious,
1 could not be examined, 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from draftrt.cli_options import (
    CheckpointPath,
    FiniteRange,
    InputPath,
    json_option,
    named_checkpoints,
)
from draftrt.errors import printable
from draftrt.runtime.prompt_options import FILE_HELP, form_options
from draftrt.runtime.prompts import Form
from draftrt.validate.compare.tables import render
from draftrt.validate.doctor.examine import Examination
from draftrt.validate.doctor.statistics import Estimate
from draftrt.validate.doctor.trial import FALSE_ALARMS, Tried

FOLDER = InputPath()


@click.group()
def doctor() -> None:
    """Find out why a drafter gains less than it should.

    Exit status: 0 nothing better found, 3 a change would raise acceptance or something is
    suspicious, 1 could not be examined, 2 usage.
    """


@doctor.command()
@click.argument("bundle", type=FOLDER)
@click.option("--prompts", required=True, type=FOLDER, help=FILE_HELP)
@click.option(
    "--draft", type=CheckpointPath(), help="Drafter's checkpoint, to be read anew and compared."
)
@click.option(
    "--target",
    type=CheckpointPath(),
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
@json_option("Print everything as JSON.")
@named_checkpoints("draft", "target")
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


MAX_ROWS = 8
HEADING = ["change", "gain a round", "95 % interval", "rounds", "verdict"]
NEVER = (
    "no draft was ever kept: an acceptance length of exactly 1.000 is no weak drafter but a broken "
    "pair. Usual causes: drafts that are ignored or compared in another vocabulary, a drafter of "
    "another target, rows taken one off (sample_from_anchor), features of other layers"
)
ALWAYS = (
    "every draft was kept: no drafter is that good. Usual causes: the target compared with itself, "
    "a target whose output the drafts already are, or prompts that only repeat themselves"
)


def as_text(found: Examination) -> list[str]:
    """Return the report as lines."""
    rounds = sum(len(text.anchors) for text in found.texts)
    lines = [
        f"{found.bundle}: acceptance length {found.length.mean:.3f} "
        f"(95 %: {_interval(found.length)}) over {rounds} rounds of {len(found.texts)} prompts, "
        f"{found.form}",
        "by position  " + " ".join(f"{share:.2f}" for share in found.by_position),
        "by context   "
        + "  ".join(
            f"{first}..{last}: {one.mean:.2f} ({one.num_rounds})"
            for (first, last), one in found.by_context.items()
        ),
        "",
        *render([HEADING, *map(_row, _shown(found))]),
    ]
    left = len(found.tried) - len(_shown(found))
    if left > 0:
        lines.append(f"and {left} more changes, none better (--json lists them)")
    for one in found.forms:
        lines.append(
            f"prompts {one.form}: acceptance length {one.length.mean:.2f}, "
            f"{one.gain.mean:+.2f} prompt by prompt"
        )
    return [*lines, "", *verdicts(found)]


def verdicts(found: Examination) -> list[str]:
    """Return what the findings mean, one line each, most certain first."""
    lines = []
    if found.fresh is not None:
        for other in (*found.fresh.facts, *found.fresh.weights):
            lines.append(
                f"{other.name}: the bundle has {other.bundle}, the checkpoint {other.checkpoint}"
            )
    if found.is_never:
        lines.append(f"suspicious: {NEVER}")
    if found.is_always:
        lines.append(f"suspicious: {ALWAYS}")
    if found.is_graph_worse:
        lines.append(
            f"the graph keeps {found.graph_gain.mean:.2f} drafts a round fewer than its own "
            "PyTorch module on the same rounds: the graph is wrong, and `draftrt validate bisect` "
            "says where"
        )
    for one in found.better[:1]:
        assert one.length is not None
        lines.append(
            f"{one.suspect.fact}: {one.suspect.change} would raise acceptance from "
            f"{found.length.mean:.2f} to {one.length:.2f} tokens a round"
        )
    for form in found.forms:
        if form.is_better:
            lines.append(
                f"prompt form: prompts {form.form} would raise acceptance from "
                f"{found.length.mean:.2f} to {form.length.mean:.2f} tokens a round"
            )
    if found.is_below_card and not found.better:
        lines.append(
            f"below its card: {found.length.mean:.2f} tokens a round, {found.expected_length} "
            "expected, and none of the usual suspects explains it; other prompts, sampling or "
            "another target than the card's may"
        )
    return lines or [_healthy(found)]


def as_json(found: Examination) -> dict[str, Any]:
    """Return everything that was measured and tried as JSON data."""
    return {
        "bundle": str(found.bundle),
        "healthy": found.is_healthy,
        "acceptance_length": estimate_json(found.length),
        "expected_length": found.expected_length,
        "never_accepted": found.is_never,
        "always_accepted": found.is_always,
        "by_position": list(found.by_position),
        "by_context": [
            {"first": first, "last": last, **estimate_json(one)}
            for (first, last), one in found.by_context.items()
        ],
        "module_gain": estimate_json(found.graph_gain),
        "graph_is_worse_than_module": found.is_graph_worse,
        "false_alarms": FALSE_ALARMS,
        "suspects": [
            {
                "fact": one.suspect.fact,
                "change": one.suspect.change,
                "gain": estimate_json(one.gain),
                "better": one.is_better,
                "acceptance_length": one.length,
            }
            for one in found.tried
        ],
        "form": found.form,
        "forms": [
            {
                "form": one.form,
                "acceptance_length": estimate_json(one.length),
                "gain": estimate_json(one.gain),
                "better": one.is_better,
            }
            for one in found.forms
        ],
        "checkpoint": None
        if found.fresh is None
        else {
            "facts": [one.to_json() for one in found.fresh.facts],
            "weights": [one.to_json() for one in found.fresh.weights],
        },
        "verdicts": verdicts(found),
    }


def estimate_json(one: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON data; bounds that are not known become null."""
    low, high = one.interval()
    is_known = one.num_groups > 1
    return {
        "mean": one.mean,
        "low": low if is_known else None,
        "high": high if is_known else None,
        "rounds": one.num_rounds,
    }


def _shown(found: Examination) -> list[Tried]:
    return list(found.tried[: max(MAX_ROWS, len(found.better))])


def _row(one: Tried) -> list[str]:
    return [
        f"{one.suspect.fact}: {one.suspect.change}",
        f"{one.gain.mean:+.2f}",
        _interval(one.gain, "{:+.2f}"),
        str(one.gain.num_rounds),
        "raises acceptance" if one.is_better else "no better",
    ]


def _interval(one: Estimate, form: str = "{:.2f}") -> str:
    if one.num_groups < 2:
        return "no interval"
    low, high = one.interval()
    return f"{form.format(low)} to {form.format(high)}"


def _healthy(found: Examination) -> str:
    tried = f"nothing better found: {len(found.tried)} changes tried on the same rounds"
    if found.expected_length is None:
        return f"{tried}; as good as its checkpoint, as far as can be seen without its card"
    low, high = found.length.interval()
    place = "within" if low <= found.expected_length <= high else "above"
    return (
        f"as good as its card: {found.expected_length} expected, {place} the measured interval; "
        f"{tried}"
    )
