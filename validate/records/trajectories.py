"""Recorded trajectories, and greedy decoding replayed against them (docs/records.md).

Greedy decoding through the runtime, replayed against a publisher's own loop.

A drafter is exported into a temporary bundle and run with its target as a user would run it; ids
must be the same, and the drafts accepted in every round up to where the loops end differently.

Recorded trajectories, read from disk: prompts, output ids, rounds (docs/records.md).

Also knows the two ways in which publishers' loops end, because the record does not repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from draftrt.bundle import Bundle
from draftrt.files import temporary_folder
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round
from draftrt.runtime.pair import Pair
from draftrt.validate.records.files import RecordError, check_version, read_json


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
        schedule="all",
        reuse_prefix=False,
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
    with temporary_folder("trajectories") as scratch:
        options = ExportOptions(target_graph=is_graph)
        bundle = export_bundle(draft, target, scratch / "bundle", options, report)
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


TRAJECTORY_VERSION = 1
LISTS = ("prompt_ids", "output_ids", "acceptance_lengths")
ROUND_LISTS = ("proposal_lengths", "accepted_draft_lengths")
KEYS = {
    *LISTS,
    *ROUND_LISTS,
    "prompt",
    "confidence_threshold",
    "target_greedy_equal",
}


class LoopEnding(str, Enum):
    """How the recording loop ends.

    ZLAB: a round with few tokens left to emit drafts a shorter block, whose drafts differ.
    DEEPSPEC: every round drafts the whole block; the last one is not cut.
    """

    ZLAB = "z-lab"
    DEEPSPEC = "deepspec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One prompt, decoded greedily by a publisher's own loop.

    Attributes:
        prompt: its text, for people.
        prompt_ids: its ids.
        output_ids: new ids.
        acceptance_lengths: tokens committed in each round, accepted drafts + 1.
        proposal_lengths: drafts verified in each round; None where the loop does not say.
        confidence_threshold: drafts before the first confidence below it are verified; 0 is all.
        is_target_greedy: whether the output equals the target's own greedy decoding.
        ending: how the recording loop ends.
    """

    prompt: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    acceptance_lengths: tuple[int, ...]
    proposal_lengths: tuple[int, ...] | None
    confidence_threshold: float
    is_target_greedy: bool
    ending: LoopEnding

    def num_comparable(self, block_size: int) -> int:
        """Return how many rounds a loop that always drafts the whole block shares with the record.

        z-lab counts the token that prefill yields as emitted and, with R tokens still to emit,
        drafts a block of ``min(block_size, R + 1)`` rows.

        Args:
            block_size: K, rows of a whole block.
        """
        if self.ending is LoopEnding.DEEPSPEC:
            return len(self.acceptance_lengths)
        emitted = 1
        for index, length in enumerate(self.acceptance_lengths):
            if len(self.output_ids) - emitted + 1 < block_size:
                return index
            emitted += length
        return len(self.acceptance_lengths)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read a file of trajectories: a list of rows (version 1), or an object with version and rows.

    Raises:
        RecordError: missing, no JSON, another version, or ill-formed rows; all of them at once.
    """
    data = read_json(path)
    if isinstance(data, dict):
        check_version(path, data.get("version", TRAJECTORY_VERSION), TRAJECTORY_VERSION)
        data = data.get("rows")
    if not isinstance(data, list) or not data:
        raise RecordError(f"{path}: got {data!r:.60}, expected a list of rows with at least one")
    problems = [f"row {n}: {text}" for n, row in enumerate(data) for text in _problems(row)]
    if problems:
        raise RecordError(f"{path}: " + "; ".join(problems), hint="docs/records.md has the format")
    return [_trajectory(row) for row in data]


def _problems(row: Any) -> list[str]:
    if not isinstance(row, dict):
        return [f"got {row!r:.40}, expected an object"]
    found = [f"unknown key {key!r}" for key in row if key not in KEYS]
    for key in (*LISTS, *(key for key in ROUND_LISTS if key in row)):
        value = row.get(key)
        if not isinstance(value, list) or not value or not all(_is_count(v) for v in value):
            found.append(f"{key}: got {value!r:.40}, expected a list of whole numbers from 0 on")
    threshold = row.get("confidence_threshold", 0.0)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
        found.append(f"confidence_threshold: got {threshold!r:.40}, expected a number from 0 to 1")
    elif not 0 <= threshold <= 1:
        found.append(f"confidence_threshold: got {threshold}, expected a number from 0 to 1")
    if not isinstance(row.get("target_greedy_equal"), bool):
        found.append("target_greedy_equal: expected true or false")
    return found or _disagreements(row)


def _disagreements(row: dict[str, Any]) -> list[str]:
    lengths = row["acceptance_lengths"]
    found = [
        f"{key} has {len(row[key])} rounds, acceptance_lengths {len(lengths)}"
        for key in ROUND_LISTS
        if key in row and len(row[key]) != len(lengths)
    ]
    accepted = row.get("accepted_draft_lengths")
    if accepted is not None and [count + 1 for count in accepted] != lengths:
        found.append("accepted_draft_lengths are not acceptance_lengths less one")
    if sum(lengths) + 1 < len(row["output_ids"]):
        found.append(
            f"acceptance_lengths sum to {sum(lengths)}, output_ids has {len(row['output_ids'])}"
        )
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _trajectory(row: dict[str, Any]) -> Trajectory:
    proposed = row.get("proposal_lengths")
    return Trajectory(
        prompt=str(row.get("prompt", "")),
        prompt_ids=tuple(row["prompt_ids"]),
        output_ids=tuple(row["output_ids"]),
        acceptance_lengths=tuple(row["acceptance_lengths"]),
        proposal_lengths=None if proposed is None else tuple(proposed),
        confidence_threshold=float(row.get("confidence_threshold", 0.0)),
        is_target_greedy=row["target_greedy_equal"],
        ending=LoopEnding.ZLAB if proposed is None else LoopEnding.DEEPSPEC,
    )


WIDTH = 32
HEADING = f"row  {'prompt':{WIDTH}}  threshold  tokens  rounds compared  accepted  verdict"


def as_line(report: TrajectoryReport) -> str:
    """Return a row's line; a difference is told behind the verdict."""
    prompt = repr(report.recorded.prompt)
    prompt = prompt if len(prompt) <= WIDTH else prompt[: WIDTH - 3] + "..."
    compared = f"{report.num_compared} of {report.num_rounds}"
    verdict = "same" if report.is_same else f"different: {report.problems[0]}"
    if len(report.problems) > 1:
        verdict += f", and {len(report.problems) - 1} more"
    return (
        f"{report.row:3}  {prompt:{WIDTH}}  {report.recorded.confidence_threshold:<9g}  "
        f"{report.num_tokens:<6}  {compared:15}  {report.num_accepted:<8}  {verdict}"
    )
