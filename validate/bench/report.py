"""The outcome of a bench as JSON data and as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftrt.codec import to_json
from draftrt.errors import printable
from draftrt.manifest import Costs
from draftrt.provenance import Machine
from draftrt.runtime.decoding.stats import Stats
from draftrt.validate.bench.measure import SPECULATIVE, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything a bench found, and how it was found.

    Attributes:
        bundle: folder of the bundle.
        pair: family, drafts a round and what runs it, in words.
        max_tokens: new tokens of each decoding.
        num_prompts: prompts.
        form: their form, in words.
        repeats: decodings of each prompt by each system.
        schedule: how many drafts were verified.
        versions: package to version.
        before: the machine when the bench began.
        after: the machine when it ended.
        systems: what each system did, plain decoding first.
        costs: times of a round's calls, by context.
        peak_memory_bytes: of the process, before any rival was loaded; None where not told.
        cache_bytes_per_token: ``drafter`` and, where it runs as a graph, ``target``.
        notes: what was not measured and why.
    """

    bundle: str
    pair: str
    max_tokens: int
    num_prompts: int
    form: str
    repeats: int
    schedule: str
    versions: dict[str, str]
    before: Machine
    after: Machine
    systems: Sequence[Summary]
    costs: Sequence[Costs]
    peak_memory_bytes: int | None
    cache_bytes_per_token: dict[str, int]
    notes: Sequence[str] = ()

    def system(self, name: str) -> Summary:
        """Return one system's summary."""
        return next(one for one in self.systems if one.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return {
            "bundle": self.bundle,
            "pair": self.pair,
            "max_tokens": self.max_tokens,
            "num_prompts": self.num_prompts,
            "form": self.form,
            "repeats": self.repeats,
            "schedule": self.schedule,
            "versions": self.versions,
            "processor": self.before.processor,
            "num_cores": self.before.num_cores,
            "load": [self.before.load, self.after.load],
            "systems": [_system_json(one) for one in self.systems],
            "costs": [to_json(one) for one in self.costs],
            "peak_memory_bytes": self.peak_memory_bytes,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return the report as at most 25 lines."""
        lines = [
            f"pair      {self.pair}",
            f"machine   {self.before.processor}, {self.before.num_cores} cores, load "
            f"{_load(self.before)} before and {_load(self.after)} after",
            f"decoded   {self.num_prompts} prompts x {self.max_tokens} tokens, each {self.repeats} "
            f"times, greedy, schedule {self.schedule}",
            f"prompts   {printable(self.form)}",
            "",
            *_table(self.systems),
            "",
        ]
        stats = self.system(SPECULATIVE).stats
        if stats is not None:
            lines += _round_lines(stats)
        for costs in self.costs:
            lines += _cost_lines(costs)
        lines += _growth_lines(self.costs, self.cache_bytes_per_token.get("target", 0))
        lines.append(f"memory    {self._memory()}")
        if self.before.is_busy:
            lines.append("warning   the machine was busy when this began; compare nothing but rows")
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])

    def _memory(self) -> str:
        held = [f"{name} {size:,}" for name, size in self.cache_bytes_per_token.items()]
        peak = self.peak_memory_bytes
        told = "not told here" if peak is None else f"{peak / 1e6:.0f} MB"
        return f"peak {told}; caches, bytes a token: {', '.join(held)}"


def _table(systems: Sequence[Summary]) -> list[str]:
    ours = next(one for one in systems if one.name == SPECULATIVE)
    rows = [["", "tokens/s", "first token", "x plain", f"{SPECULATIVE} is", "same ids"]]
    for one in systems:
        ratio = ours.times_plain / one.times_plain
        rows.append(
            [
                one.name,
                f"{one.tokens_per_s:.1f}",
                "-" if one.first_ms is None else f"{one.first_ms:.1f} ms",
                f"{one.times_plain:.3g}",
                "" if one is ours else f"{ratio:.2f} x as fast",
                f"{one.num_same} of {one.num_decodings}",
            ]
        )
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _round_lines(stats: Stats) -> list[str]:
    whole, rounds = stats.decode_s, stats.num_rounds + stats.plain_rounds
    parts = (("draft", stats.draft_s), ("verify", stats.verify_s), ("host", stats.host_s))
    split = ", ".join(
        f"{name} {1e3 * spent / max(rounds, 1):.2f} ms ({spent / whole:.1%})"
        for name, spent in parts
    )
    positions = " ".join(f"{share:.2f}" for share in stats.acceptance_by_position)
    return [
        f"round     {split}",
        f"accepted  length {stats.acceptance_length:.2f} over {stats.num_rounds} rounds"
        f"{stats.others()}; by position {positions}",
    ]


def _cost_lines(costs: Costs) -> list[str]:
    one = costs.verify_ms[1]
    cells = ", ".join(
        f"{rows}: {time:.2f} ({time / one:.2f})" for rows, time in costs.verify_ms.items()
    )
    return [
        f"costs     behind {costs.context} tokens: draft {costs.draft_ms:.2f} ms; verify, ms by "
        "rows (to one row)",
        f"          {cells}",
    ]


def _growth_lines(costs: Sequence[Costs], bytes_per_token: int) -> list[str]:
    """Return what more context costs: only attention's reading of it should."""
    if len(costs) < 2:
        return []
    near, far = costs[0], costs[-1]
    more = (far.context - near.context) / 1000
    rows = max(near.verify_ms)
    cells = [("draft", far.draft_ms - near.draft_ms)] + [
        (f"verify {count}", far.verify_ms[count] - near.verify_ms[count]) for count in (1, rows)
    ]
    told = ", ".join(f"{name} {extra / more:+.2f}" for name, extra in cells)
    read = (far.context - near.context) * bytes_per_token
    spent_ms = far.verify_ms[1] - near.verify_ms[1]
    rate = f"{read / spent_ms / 1e6:.1f} GB/s" if spent_ms > 0 else "no measurable time"
    return [
        f"context   ms for every 1,000 tokens more: {told}",
        f"          one row reads their {bytes_per_token / 1e3:.1f} MB of K/V at {rate}",
    ]


def _system_json(one: Summary) -> dict[str, Any]:
    return {
        "name": one.name,
        "tokens_per_s": one.tokens_per_s,
        "first_ms": one.first_ms,
        "times_plain": one.times_plain,
        "num_decodings": one.num_decodings,
        "num_same": one.num_same,
        "stats": None if one.stats is None else one.stats.to_json(),
    }


def _load(machine: Machine) -> str:
    return "?" if machine.load is None else f"{machine.load:.2f}"
