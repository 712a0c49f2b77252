"""Greedy decoding through the runtime, replayed against a publisher's own loop.

A drafter is exported into a temporary bundle and run with its target as a user would run it; ids
must be the same, and the drafts accepted in every round up to where the loops end differently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftrt.bundle import Bundle
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round
from draftrt.runtime.pair import Pair
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.trajectory_records import Trajectory, read_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryReport:
    """What the replay of one row showed.

    Attributes:
        row: its place in the file, from 0.
        recorded: the row.
        num_tokens: new tokens.
        num_rounds: rounds of the replay that drafted.
        num_compared: rounds compared with the record.
        num_accepted: drafts accepted in those rounds.
        problems: every difference, first one first; empty when there is none.
    """

    row: int
    recorded: Trajectory
    num_tokens: int
    num_rounds: int
    num_compared: int
    num_accepted: int
    problems: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether ids and rounds are the record's."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "row": self.row,
            "prompt": self.recorded.prompt,
            "confidence_threshold": self.recorded.confidence_threshold,
            "ending": self.recorded.ending.value,
            "same": self.is_same,
            "tokens": self.num_tokens,
            "rounds": self.num_rounds,
            "compared_rounds": self.num_compared,
            "accepted": self.num_accepted,
            "problems": list(self.problems),
        }


def check_trajectories(
    draft: Path,
    target: Path,
    expected: Path,
    *,
    target_port: str = "hf",
    threshold: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[TrajectoryReport]:
    """Replay the rows of a file one by one.

    Args:
        draft: drafter checkpoint.
        target: target checkpoint.
        expected: file of trajectories.
        target_port: what runs the target: ``hf``, or ``graph``, its own exported graph.
        threshold: replay only rows recorded with this confidence threshold; None: all rows.
        report: gets one line a step of the export.

    Raises:
        RecordError: the file is missing or ill-formed, or has no row with that threshold.
        DraftrtError: the pair cannot be exported or run.
    """
    rows = list(enumerate(read_trajectories(expected)))
    if threshold is not None:
        known = sorted({row.confidence_threshold for _, row in rows})
        rows = [(n, row) for n, row in rows if row.confidence_threshold == threshold]
        if not rows:
            raise RecordError(f"{expected}: no row with threshold {threshold}, it has {known}")
    with _exported(draft, target, target_port, report) as (pair, block_size):
        for number, row in rows:
            yield replay(number, row, pair, block_size)


def replay(number: int, recorded: Trajectory, pair: Pair, block_size: int) -> TrajectoryReport:
    """Decode a row's prompt and compare ids and rounds.

    Args:
        number: the row's place in the file.
        recorded: the row.
        pair: a loaded drafter and target.
        block_size: K, rows the drafter is fed in a round.

    Raises:
        FeedError: prompt and output do not fit the caches.
        UnsupportedError: a confidence threshold without a confidence head.
    """
    options = DecodeOptions(
        max_tokens=len(recorded.output_ids),
        stop_ids=frozenset(),
        confidence_threshold=recorded.confidence_threshold,
    )
    rounds = list(pair.rounds(recorded.prompt_ids, options))
    output = [token for one in rounds for token in one.token_ids]
    drafted = rounds[1:]
    count = min(len(drafted), recorded.num_comparable(block_size))
    problems = _id_problems(recorded, output) + _round_problems(recorded, drafted[:count])
    return TrajectoryReport(
        row=number,
        recorded=recorded,
        num_tokens=len(output),
        num_rounds=len(drafted),
        num_compared=count,
        num_accepted=sum(one.num_accepted for one in drafted[:count]),
        problems=tuple(problems),
    )


@contextmanager
def _exported(
    draft: Path, target: Path, target_port: str, report: Callable[[str], None]
) -> Iterator[tuple[Pair, int]]:
    """Give the pair, loaded from a bundle that is gone at the end, and its block size."""
    from draftrt.export.options import ExportOptions
    from draftrt.export.pipeline import export_bundle
    from draftrt.runtime.load import load

    is_graph = target_port == "graph"
    with tempfile.TemporaryDirectory(prefix="draftrt-trajectories-") as name:
        options = ExportOptions(target_graph=is_graph)
        bundle = export_bundle(draft, target, Path(name) / "bundle", options, report)
        block_size = Bundle.open(bundle).drafter().block_size
        folder = None if is_graph else target
        with load(bundle, target=folder, target_port=target_port) as pair:
            yield pair, block_size


def _id_problems(recorded: Trajectory, output: Sequence[int]) -> list[str]:
    for index, (want, got) in enumerate(zip(recorded.output_ids, output, strict=False)):
        if want != got:
            note = "" if recorded.is_target_greedy else " (recorded as not the target's own)"
            return [f"id {index} is {got}, expected {want}{note}"]
    if len(output) != len(recorded.output_ids):
        return [f"{len(output)} ids, expected {len(recorded.output_ids)}"]
    return []


def _round_problems(recorded: Trajectory, drafted: Sequence[Round]) -> list[str]:
    problems = []
    for index, one in enumerate(drafted):
        want = recorded.acceptance_lengths[index] - 1
        if one.num_accepted != want:
            problems.append(f"round {index} accepts {one.num_accepted} drafts, expected {want}")
        if recorded.proposal_lengths is not None:
            proposed = recorded.proposal_lengths[index]
            if one.num_verified != proposed:
                problems.append(
                    f"round {index} verifies {one.num_verified} drafts, expected {proposed}"
                )
    return problems
