"""A replay is compared id by id and round by round, with recorded rounds in place of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round
from draftrt.runtime.pair import Pair
from draftrt.validate.records.trajectories import (
    HEADING,
    TrajectoryReport,
    as_line,
    read_trajectories,
    replay,
)


@dataclass
class FakePair:
    """Gives rounds that were decided before, and keeps what it was asked for."""

    told: list[Round]
    asked: list[DecodeOptions] = field(default_factory=list)

    def rounds(self, prompt_ids: Sequence[int], options: DecodeOptions) -> Iterator[Round]:
        assert prompt_ids == (1, 2)
        self.asked.append(options)
        return iter(self.told)


def told(*, accepted: Sequence[int] = (1, 0, 1), verified: int = 3) -> list[Round]:
    """The rounds of the recorded row: prefill, then three rounds."""
    tokens = [(3,), (4, 5), (6,), (7,)]
    return [
        Round(
            index=index,
            token_ids=token_ids,
            draft_ids=(9, 9, 9) if index else (),
            num_verified=verified if index else 0,
            num_accepted=accepted[index - 1] if index else 0,
        )
        for index, token_ids in enumerate(tokens)
    ]


@pytest.fixture
def check(
    row: dict[str, Any], write_rows: Callable[[Any], Path]
) -> Callable[[list[Round]], TrajectoryReport]:
    def run(rounds: list[Round]) -> TrajectoryReport:
        (recorded,) = read_trajectories(write_rows([row]))
        return replay(0, recorded, cast(Pair, FakePair(rounds)), block_size=3)

    return run


Check = Callable[[list[Round]], TrajectoryReport]


def test_the_recorded_rounds_are_the_same(check: Check) -> None:
    found = check(told())
    assert found.is_same
    assert (found.num_tokens, found.num_rounds, found.num_compared) == (5, 3, 3)
    assert found.num_accepted == 2
    assert as_line(found).startswith("  0  'some text'  ")
    assert as_line(found).endswith("  0          5       3 of 3           2         same")
    assert as_line(found).index("same") == HEADING.index("verdict")


def test_another_id_is_told_with_its_place(check: Check) -> None:
    rounds = told()
    rounds[2] = Round(index=2, token_ids=(8,), num_verified=3)
    found = check(rounds)
    assert found.problems == ("id 3 is 8, expected 6",)
    assert as_line(found).endswith("different: id 3 is 8, expected 6")


def test_a_lost_token_is_told(check: Check) -> None:
    assert check(told()[:-1]).problems == ("4 ids, expected 5",)


def test_another_acceptance_is_told_although_the_ids_agree(check: Check) -> None:
    found = check(told(accepted=(1, 2, 0)))
    assert found.problems == (
        "round 1 accepts 2 drafts, expected 0",
        "round 2 accepts 0 drafts, expected 1",
    )
    assert as_line(found).endswith("expected 0, and 1 more")


def test_another_proposal_length_is_told(check: Check) -> None:
    found = check(told(verified=2))
    assert found.problems[0] == "round 0 verifies 2 drafts, expected 3"
    assert len(found.problems) == 3


def test_rounds_behind_the_point_where_the_loops_part_are_left_out(
    row: dict[str, Any], check: Check
) -> None:
    del row["proposal_lengths"], row["accepted_draft_lengths"]
    # z-lab: four tokens to emit, a block of 3; then two, still whole; then one, cut to 2 rows
    row["acceptance_lengths"] = [2, 1, 1]
    found = check(told(accepted=(1, 0, 2)))
    assert found.num_compared == 2
    assert found.is_same
    assert not check(told(accepted=(1, 1, 0))).is_same


def test_the_rows_threshold_is_applied_and_no_token_ends_the_text(
    row: dict[str, Any], write_rows: Callable[[Any], Path]
) -> None:
    row["confidence_threshold"] = 0.15
    pair = FakePair(told())
    replay(0, read_trajectories(write_rows([row]))[0], cast(Pair, pair), block_size=3)
    assert pair.asked == [
        DecodeOptions(
            max_tokens=5,
            stop_ids=frozenset(),
            confidence_threshold=0.15,
            schedule="all",
            reuse_prefix=False,
        )
    ]


def test_a_difference_notes_that_the_record_was_not_the_targets_own(
    row: dict[str, Any], check: Check
) -> None:
    row["target_greedy_equal"] = False
    rounds = told()
    rounds[0] = Round(index=0, token_ids=(8,))
    assert check(rounds).problems == ("id 0 is 8, expected 3 (recorded as not the target's own)",)


def invoke(*arguments: object) -> tuple[int, str]:
    words = ["validate", "trajectories", "--draft", "d", "--target", "t", *map(str, arguments)]
    done = CliRunner().invoke(group, words)
    return done.exit_code, done.stderr


def test_a_threshold_that_no_row_has_is_not_checked(
    row: dict[str, Any], write_rows: Callable[[Any], Path]
) -> None:
    code, said = invoke(write_rows([row]), "--threshold", 0.5)
    assert code == 1
    assert "no row with threshold 0.5, it has [0.0]" in said


def test_a_missing_file_is_not_checked_and_a_missing_option_is_wrong_usage(tmp_path: Path) -> None:
    code, said = invoke(tmp_path / "nothing.json")
    assert code == 1
    assert "nothing.json: missing" in said
    assert invoke()[0] == 2
    assert invoke("x.json", "--threshold", 7)[0] == 2
