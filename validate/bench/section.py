"""A bench as one section of a report, and the plots of it as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.validate.bench.measure import SPECULATIVE
from draftrt.validate.bench.plots import (
    Plot,
    Section,
    Table,
    bars,
    lines,
    rows_of_bars,
    sheet,
    split,
)

BUSY = 0.75  # load a core from which on times say little


def speculative(bench: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the pair did with its drafter; None where the bench lacks it."""
    named = {one["name"]: one for one in bench["systems"]}
    return named.get(SPECULATIVE)


def bench_section(bench: Mapping[str, Any], source: str) -> Section:
    """Return what ``draftrt bench --json`` wrote as a section.

    Args:
        bench: its data.
        source: where it comes from, in words.
    """
    repeats = bench["repeats"]
    times = "once" if repeats == 1 else f"{repeats} times"
    load = ", ".join("?" if one is None else f"{one:.2f}" for one in bench["load"])
    text = [
        f"{bench['pair']}. {bench['num_prompts']} prompts × {bench['max_tokens']} tokens, each "
        f"{times}, greedy, {_form(bench)}on {bench['processor']}, {bench['num_cores']} cores, "
        f"load before and after {load}. Source: {source}.",
        *bench["notes"],
    ]
    if any(one is not None and one > BUSY * bench["num_cores"] for one in bench["load"]):
        text.append("The machine was busy: compare nothing but rows of one table.")
    rows = [
        [
            one["name"],
            f"{one['tokens_per_s']:.1f}",
            "-" if one["first_ms"] is None else f"{one['first_ms']:.1f}",
            f"{one['times_plain']:.2f}",
            f"{one['num_same']} of {one['num_decodings']}",
        ]
        for one in bench["systems"]
    ]
    head = ["system", "tokens/s", "first token, ms", "× plain", "same ids"]
    speeds = Table(head=head, rows=rows, title="Speed")
    own = speculative(bench)
    plots = []
    if own is not None and own.get("stats"):
        plots += [_positions(own["stats"]), _round(own["stats"])]
    if bench["costs"]:
        plots.append(_costs(bench["costs"]))
    return Section(title="Acceptance and times", text=text, tables=[speeds], plots=plots)


def _form(bench: Mapping[str, Any]) -> str:
    """Return the form of the prompts; a bench of an older draftrt does not tell it."""
    return f"prompts {bench['form']}, " if "form" in bench else ""


def _positions(stats: Mapping[str, Any]) -> Plot:
    shares = [float(share) for share in stats["acceptance_by_position"]]
    names = [str(index + 1) for index in range(len(shares))]
    title = (
        f"Drafts kept, by position: {stats['acceptance_length']:.2f} tokens a round over "
        f"{stats['num_rounds']} rounds"
    )
    return Plot(
        title=title,
        svg=bars(title, shares, names, axis="position in the block", most=1.0),
        table=Table(
            head=["position", "share of drafts kept"],
            rows=[[name, f"{share:.3f}"] for name, share in zip(names, shares, strict=True)],
        ),
    )


def _round(stats: Mapping[str, Any]) -> Plot:
    rounds = max(stats["num_rounds"], 1)
    parts = {name: 1e3 * stats[f"{name}_s"] / rounds for name in ("draft", "verify", "host")}
    whole = sum(parts.values()) or 1.0
    title = f"A round's time: {sum(parts.values()):.3g} ms"
    return Plot(
        title=title,
        svg=split(title, parts, unit="ms"),
        table=Table(
            head=["part", "ms a round", "share"],
            rows=[[name, f"{size:.3g}", f"{size / whole:.1%}"] for name, size in parts.items()],
        ),
    )


def _costs(costs: Sequence[Mapping[str, Any]]) -> Plot:
    series = {
        f"behind {one['context']} cached tokens": {
            int(rows): float(time) for rows, time in one["verify_ms"].items()
        }
        for one in costs
    }
    title = "Verification: milliseconds by rows in one call of the target"
    return Plot(
        title=title,
        svg=lines(title, series, axis="rows: anchor and drafts", unit="ms"),
        table=Table(
            head=["cached tokens", "rows", "ms"],
            rows=[
                [str(one["context"]), str(rows), f"{time:.3g}"]
                for one in costs
                for rows, time in one["verify_ms"].items()
            ],
        ),
    )


def to_svg(bench: Mapping[str, Any]) -> str:
    """Return what ``draftrt bench --json`` wrote as a picture: speeds, a round, drafts kept, costs.

    Args:
        bench: its data.
    """
    load = bench["load"][0]
    about = (
        f"{bench['num_prompts']} prompts × {bench['max_tokens']} tokens, greedy; "
        f"{bench['processor']}, {bench['num_cores']} cores"
        + ("" if load is None else f", load {load:.2f}")
    )
    title = "Tokens a second"
    speeds = {one["name"]: float(one["tokens_per_s"]) for one in bench["systems"]}
    plots = [(title, rows_of_bars(title, speeds))]
    plots += [(plot.title, plot.svg) for plot in bench_section(bench, "").plots]
    return sheet(bench["pair"], about, plots)
