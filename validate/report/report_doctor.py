"""The part of a report that says what the acceptance doctor found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.validate.report.plots import bars
from draftrt.validate.report.report_parts import Plot, Section, Table

KEYS = ("verdicts", "acceptance_length", "by_position", "by_context", "suspects", "forms")


def doctor_section(found: Mapping[str, Any], source: str) -> Section:
    """Return what ``draftrt doctor acceptance --json`` printed as a section.

    Args:
        found: its data.
        source: where it comes from, in words.
    """
    length = found["acceptance_length"]
    text = [
        f"{length['mean']:.2f} tokens a round{_interval(length)}, over {length['rounds']} rounds. "
        f"Source: {source}.",
        *found["verdicts"],
    ]
    suspects = Table(
        head=["fact", "change tried", "gain, tokens a round", "would help"],
        rows=[
            [one["fact"], one["change"], _gain(one["gain"]), "yes" if one["better"] else "no"]
            for one in found["suspects"]
        ],
        title="Changes tried on the same rounds",
        is_long=True,
    )
    forms = Table(
        head=["form of the prompts", "tokens a round", "gain", "would help"],
        rows=[
            [
                one["form"],
                _gain(one["acceptance_length"]),
                _gain(one["gain"]),
                "yes" if one["better"] else "no",
            ]
            for one in found["forms"]
        ],
        title="Other forms of the prompts",
    )
    return Section(
        title="Acceptance doctor",
        text=text,
        tables=[suspects, forms],
        plots=[_by_position(found["by_position"]), _by_context(found["by_context"])],
    )


def _by_position(shares: Sequence[float]) -> Plot:
    names = [str(index + 1) for index in range(len(shares))]
    title = "Drafts kept, by position"
    return Plot(
        title=title,
        svg=bars(title, [float(share) for share in shares], names, axis="position", most=1.0),
        table=Table(
            head=["position", "share of drafts kept"],
            rows=[[name, f"{share:.3f}"] for name, share in zip(names, shares, strict=True)],
        ),
    )


def _by_context(buckets: Sequence[Mapping[str, Any]]) -> Plot:
    names = [f"{one['first']}–{one['last']}" for one in buckets]
    means = [float(one["mean"]) for one in buckets]
    title = "Tokens a round, by tokens of context"
    most = 1.15 * max(means, default=1.0)
    return Plot(
        title=title,
        svg=bars(title, means, names, axis="tokens of context", most=most),
        table=Table(
            head=["tokens of context", "tokens a round", "rounds"],
            rows=[
                [name, _gain(one), str(one["rounds"])]
                for name, one in zip(names, buckets, strict=True)
            ],
        ),
    )


def _gain(one: Mapping[str, Any] | None) -> str:
    return "-" if one is None else f"{one['mean']:.2f}{_interval(one)}"


def _interval(one: Mapping[str, Any]) -> str:
    if one["low"] is None:
        return ""
    return f" ({one['low']:.2f} to {one['high']:.2f})"
