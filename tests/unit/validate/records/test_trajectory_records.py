"""Trajectories are read whole or refused, and know how many rounds are comparable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftrt.validate.records.files import RecordError
from draftrt.validate.records.trajectories import LoopEnding, read_trajectories

Write = Callable[[Any], Path]


def test_rows_are_read_from_a_list_or_a_versioned_object(
    row: dict[str, Any], write_rows: Write
) -> None:
    (found,) = read_trajectories(write_rows([row]))
    assert found.output_ids == (3, 4, 5, 6, 7)
    assert found.ending is LoopEnding.DEEPSPEC
    assert read_trajectories(write_rows({"version": 1, "rows": [row]})) == [found]


def test_a_row_without_a_threshold_verifies_everything(
    row: dict[str, Any], write_rows: Write
) -> None:
    del row["confidence_threshold"]
    assert read_trajectories(write_rows([row]))[0].confidence_threshold == 0.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "expected a list of rows with at least one"),
        ({"rows": 3}, "got 3, expected a list"),
        ({"version": 9, "rows": []}, "got record version 9, expected 1"),
        ("text", "expected a list of rows"),
        ([3], "row 0: got 3, expected an object"),
    ],
)
def test_what_holds_no_rows_is_refused(content: Any, said: str, write_rows: Write) -> None:
    with pytest.raises(RecordError, match=said):
        read_trajectories(write_rows(content))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("output_ids", None, "output_ids: got None, expected a list of whole numbers"),
        ("output_ids", [], "output_ids"),
        ("output_ids", [1, -2], "output_ids"),
        ("output_ids", [1, True], "output_ids"),
        ("prompt_ids", [1.5], "prompt_ids"),
        ("confidence_threshold", 2, "got 2, expected a number from 0 to 1"),
        ("confidence_threshold", "low", "got 'low'"),
        ("target_greedy_equal", 1, "target_greedy_equal"),
        ("proposal_lengths", [3], "proposal_lengths has 1 rounds, acceptance_lengths 3"),
        ("accepted_draft_lengths", [1, 1, 1], "not acceptance_lengths less one"),
        ("acceptance_lengths", [1, 1, 1], "not acceptance_lengths less one"),
        ("output_ids", [1] * 7, "acceptance_lengths sum to 5, output_ids has 7"),
        ("speed", 3, "unknown key 'speed'"),
    ],
)
def test_an_ill_formed_row_is_refused(
    row: dict[str, Any], write_rows: Write, key: str, value: Any, said: str
) -> None:
    row[key] = value
    with pytest.raises(RecordError, match=said):
        read_trajectories(write_rows([row]))


def test_every_bad_row_is_told(row: dict[str, Any], write_rows: Write) -> None:
    bad = {**row, "prompt_ids": []}
    with pytest.raises(RecordError, match=r"row 0: .*row 2: "):
        read_trajectories(write_rows([bad, row, bad]))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nothing\.json: missing"):
        read_trajectories(tmp_path / "nothing.json")


def test_every_deepspec_round_is_comparable(row: dict[str, Any], write_rows: Write) -> None:
    assert read_trajectories(write_rows([row]))[0].num_comparable(block_size=8) == 3


@pytest.mark.parametrize(
    ("lengths", "block_size", "expected"),
    [
        # ten tokens, the prefill's own counted: 9 to emit, then fewer; a block of 4 needs 3
        ([1] * 9, 4, 7),
        ([4, 2, 1, 1, 1], 4, 3),
        ([4, 4, 1], 4, 2),
        ([1] * 9, 11, 0),
        ([1] * 9, 10, 1),
    ],
)
def test_zlab_rounds_are_comparable_while_the_block_is_whole(
    row: dict[str, Any], write_rows: Write, lengths: list[int], block_size: int, expected: int
) -> None:
    del row["proposal_lengths"], row["accepted_draft_lengths"]
    row |= {"output_ids": list(range(10)), "acceptance_lengths": lengths}
    found = read_trajectories(write_rows([row]))[0]
    assert found.ending is LoopEnding.ZLAB
    assert found.num_comparable(block_size) == expected
