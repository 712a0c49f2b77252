"""Recorded trajectories, read from disk: prompts, output ids, rounds (docs/records.md).

Also knows the two ways in which publishers' loops end, because the record does not repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from draftrt.validate.records.files import RecordError, check_version, read_json

VERSION = 1

LISTS = ("prompt_ids", "output_ids", "acceptance_lengths")
ROUND_LISTS = ("proposal_lengths", "accepted_draft_lengths")
KEYS = {
    *LISTS,
    *ROUND_LISTS,
    "prompt",
    "confidence_threshold",
    "target_greedy_equal",
}


class Ending(str, Enum):
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
    ending: Ending

    def num_comparable(self, block_size: int) -> int:
        """Return how many rounds a loop that always drafts the whole block shares with the record.

        z-lab counts the token that prefill yields as emitted and, with R tokens still to emit,
        drafts a block of ``min(block_size, R + 1)`` rows.

        Args:
            block_size: K, rows of a whole block.
        """
        if self.ending is Ending.DEEPSPEC:
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
        check_version(path, data.get("version", VERSION), VERSION)
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
        ending=Ending.ZLAB if proposed is None else Ending.DEEPSPEC,
    )
