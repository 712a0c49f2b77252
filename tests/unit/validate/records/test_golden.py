"""`draftrt validate golden` tells same, different and unchecked apart, with the module alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from draftrt.cli import group
from draftrt.validate.records.golden import PYTORCH, check_cases

Change = Callable[[dict[str, NDArray[Any]]], None]


@pytest.fixture
def case(root: Path, tmp_path: Path) -> Path:
    """A copy of a case that is right, to be spoilt."""
    copy = tmp_path / "copy"
    return shutil.copytree(root / "tests" / "golden" / "deepspec-dspark-padded-vocab", copy)


def golden(*arguments: object) -> Result:
    words = ["validate", "golden", "--backend", "pytorch", *map(str, arguments)]
    return CliRunner().invoke(group, words)


def change_arrays(case: Path, change: Change) -> None:
    with np.load(case / "expected.npz") as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(case / "expected.npz", **arrays)


def test_a_right_case_is_the_same(case: Path) -> None:
    done = golden(case)
    assert done.exit_code == 0, done.output
    heading, line = done.stdout.splitlines()
    assert heading.split() == ["case", "rounds", "pytorch", "limit", "verdict"]
    assert line.startswith("copy  4       same ids, ")
    assert line.endswith("same")


def test_one_changed_weight_is_a_difference(case: Path) -> None:
    file = case / "draft" / "model.safetensors"
    tensors = load_file(file)
    tensors["layers.2.mlp.down_proj.weight"][3, 5] += 0.5
    save_file(tensors, file, metadata={"format": "pt"})
    done = golden(case)
    assert done.exit_code == 3
    assert "different" in done.stdout
    assert "pytorch r0." in done.stdout
    assert "differs by" in done.stdout
    assert "1 of 1 cases differ: copy" in done.stderr


def nan_in(name: str) -> Change:
    def change(arrays: dict[str, NDArray[Any]]) -> None:
        arrays[name].flat[3] = np.nan

    return change


def other_token(arrays: dict[str, NDArray[Any]]) -> None:
    arrays["r2.tokens"][-1] ^= 1


def other_shape(arrays: dict[str, NDArray[Any]]) -> None:
    arrays["r1.hidden"] = arrays["r1.hidden"][:, :-1]


def finite_padding(arrays: dict[str, NDArray[Any]]) -> None:
    arrays["r0.logits"][0, -1] = 0.0


def unknown_output(arrays: dict[str, NDArray[Any]]) -> None:
    arrays["r0.candidates"] = np.zeros((7, 2), np.int64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (nan_in("r3.logits"), "r3.logits differs by inf"),
        (nan_in("r0.target_hidden"), "got nan"),
        (other_token, "r2.tokens got ["),
        (other_shape, "r1.hidden got shape [7, 64], expected [7, 63]"),
        (finite_padding, "r0.logits got shape [7, 140], expected [7, 160]"),
        (unknown_output, "r0.candidates the graph has no such output"),
    ],
    ids=["NaN expected", "NaN fed", "token", "shape", "padding", "no such output"],
)
def test_a_planted_difference_is_found_and_named(case: Path, change: Change, said: str) -> None:
    change_arrays(case, change)
    done = golden(case)
    assert done.exit_code == 3, done.output
    assert said in done.stdout


def test_a_record_may_state_its_own_tolerance(case: Path) -> None:
    def shift(arrays: dict[str, NDArray[Any]]) -> None:
        arrays["r0.hidden"] += 5e-4

    change_arrays(case, shift)
    assert golden(case).exit_code == 3
    facts = json.loads((case / "case.json").read_text())
    (case / "case.json").write_text(json.dumps({**facts, "tolerance": 1e-3}))
    done = golden(case)
    assert done.exit_code == 0, done.output
    assert "1e-03" in done.stdout


def test_what_cannot_be_checked_is_no_verdict(case: Path, tmp_path: Path) -> None:
    done = golden(tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "unchecked" in done.stdout
    assert "no golden case there, missing case.json" in done.stderr
    (case / "draft" / "model.safetensors").unlink()
    done = golden(case, tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "2 of 2 cases could not be checked: copy, nowhere" in done.stderr


def test_a_record_of_another_drafter_is_not_checked(case: Path) -> None:
    def widen(arrays: dict[str, NDArray[Any]]) -> None:
        for name in [name for name in arrays if name.endswith("target_hidden")]:
            arrays[name] = np.concatenate([arrays[name]] * 2, axis=2)

    change_arrays(case, widen)
    done = golden(case)
    assert done.exit_code == 1
    assert "target_hidden has width 384, expected 192 (3 taps of 64)" in done.stderr


def test_a_difference_outranks_a_case_that_could_not_be_checked(case: Path, tmp_path: Path) -> None:
    change_arrays(case, other_token)
    done = golden(tmp_path / "nowhere", case)
    assert done.exit_code == 3
    assert "1 of 2 cases differ: copy" in done.stderr


def test_json_holds_every_comparison(case: Path) -> None:
    change_arrays(case, nan_in("r3.logits"))
    done = golden(case, "--json")
    assert done.exit_code == 3
    (found,) = json.loads(done.stdout)["cases"]
    assert (found["case"], found["verdict"], found["atol"]) == ("copy", "different", 1e-4)
    rounds = found["backends"]["pytorch"]
    assert rounds["r3.logits"] | {"problem": ""} == {
        "output": "logits",
        "same": False,
        "worst": "inf",
        "allowed": 1e-4,
        "equal": 0,
        "compared": 980,
        "problem": "",
    }
    assert sum(not one["same"] for one in rounds.values()) == 1


def test_no_case_is_wrong_usage() -> None:
    assert golden().exit_code == 2
    assert golden("x", "--backend", "magic").exit_code == 2


def test_cases_are_checked_one_by_one_and_errors_do_not_stop_the_others(
    case: Path, tmp_path: Path
) -> None:
    reports = list(check_cases([tmp_path / "nowhere", case], backends=[PYTORCH]))
    assert [one.verdict for one in reports] == ["unchecked", "same"]
    assert set(reports[1].findings) == {PYTORCH}
