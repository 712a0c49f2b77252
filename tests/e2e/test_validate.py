"""`draftrt validate trajectories` on the golden pairs: every row, and what a spoilt one gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAIRS = Path(__file__).resolve().parent.parent / "golden-pairs"


def trajectories(draft: str, expected: Path, *arguments: object) -> Result:
    words = ["--draft", PAIRS / draft, "--target", PAIRS / "tiny-target", expected, *arguments]
    return CliRunner().invoke(group, ["validate", "trajectories", *map(str, words)])


def test_every_row_of_zlabs_loop_is_replayed() -> None:
    done = trajectories("tiny-dflash", PAIRS / "expected-dflash.json", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [one["row"] for one in rows] == list(range(7))
    for one in rows:
        assert (one["ending"], one["same"], one["tokens"]) == ("z-lab", True, 96)
        # a block of 8 is whole while seven tokens or more are missing
        assert one["rounds"] - one["compared_rounds"] <= 6
        assert one["compared_rounds"] >= 48
    assert sum(one["accepted"] for one in rows) > 150


def test_the_targets_own_graph_gives_the_same_rounds() -> None:
    path = PAIRS / "expected-dspark.json"
    done = trajectories("tiny-dspark", path, "--target-port", "graph", "--threshold", 0.15)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [str(n) for n in range(7, 14)]
    assert all(line.endswith("  same") for line in lines)


def test_every_row_of_deepspecs_loop_is_replayed_and_a_spoilt_one_is_found(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = json.loads((PAIRS / "expected-dspark.json").read_text())
    spoilt = {**rows[2], "prompt": "spoilt", "acceptance_lengths": [*rows[2]["acceptance_lengths"]]}
    spoilt["acceptance_lengths"][5] += 1
    del spoilt["accepted_draft_lengths"]
    path = tmp_path / "expected.json"
    path.write_text(json.dumps({"version": 1, "rows": [*rows, spoilt]}))
    done = trajectories("tiny-dspark", path)
    assert done.exit_code == 3, done.output
    heading, *lines = done.stdout.splitlines()
    assert heading.split()[0] == "row"
    assert len(lines) == 15
    assert all(line.endswith("  same") for line in lines[:14])
    assert sum(" 0.15 " in line for line in lines) == 7
    assert "different: round 5 accepts " in lines[14]
    assert "1 of 15 rows differ" in done.stderr
