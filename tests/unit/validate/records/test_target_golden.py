"""Recorded answers of a target: written, read, checked, and told where they are not its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.tolerances import target_limits
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.target_cases import read_target_case
from draftrt.validate.records.target_golden import TargetOptions, check_target_cases

pytest.importorskip("transformers")

TARGET = Path(__file__).parents[3] / "assets" / "tiny-target"
PROMPTS = "Table of 10 up to 18:\nHi\nA story of the old goat and the sea, told twice over.\n"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case of the shipped target, written by the command."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "prompts.txt").write_text(PROMPTS)
    done = run(
        "record",
        *("--target", TARGET, "-o", folder / "case", "--prompts", folder / "prompts.txt"),
        *("--taps", "-1,1", "--rounds", 3),
    )
    assert done.exit_code == 0, done.output
    return folder / "case"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(group, ["validate", *map(str, arguments)])


def test_a_recorded_target_is_the_same_in_every_split_and_round(case: Path) -> None:
    done = run("golden", case, "--json", "--splits", 2)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["cases"][0]
    assert (told["kind"], told["verdict"], told["prompts"], told["rounds"]) == (
        "target",
        "same",
        3,
        15,
    )
    names = {name.split(", ", 1)[1] for name in told["findings"]}
    ways = ("whole", "1 a call", "16 a call", "random split 1", "as a prompt")
    assert {f"{way}, features" for way in ways} <= names
    assert {"exact, argmax", "padded, argmax", "padded, logits"} <= names
    compared = [one["compared"] for name, one in told["findings"].items() if "argmax" in name]
    assert sum(compared) > 200


def copied(case: Path, folder: Path) -> Path:
    shutil.copytree(case, folder / "case")
    return folder / "case"


def change(path: Path, name: str, edit: Callable[[np.ndarray[Any, Any]], object]) -> None:
    with np.load(path) as stored:
        arrays = dict(stored)
    edit(arrays[name])
    np.savez(path, **arrays)


def last_of(case: Path) -> str:
    return f"p{max(len(one.ids) for one in read_target_case(case).prompts)}"


def add(place: tuple[int, ...], much: float) -> Callable[[np.ndarray[Any, Any]], object]:
    def edit(array: np.ndarray[Any, Any]) -> None:
        array[place] += much

    return edit


@pytest.mark.parametrize(
    ("file", "array", "edit", "found"),
    [
        ("prefill", "{}.logits", add((3, 5), 0.01), "{}, {}, logits"),
        ("prefill", "{}.features", add((0, 7), 0.01), "{}, {}, features"),
        ("prefill", "{}.argmax", add((17,), 1), "{}, {}, argmax"),
        ("rounds", "s1.r1.features", add((0, 3), 0.01), "s1.r1, {}, features"),
        ("rounds", "s1.r2.top_values", add((0, 2), 0.01), "s1.r2, {}, logits"),
        ("rounds", "s1.r0.argmax", add((0,), 1), "s1.r0, {}, argmax"),
        ("rounds", "s0.prefill.top_values", add((1,), 0.01), "s0.prefill, {}, logits"),
    ],
)
def test_one_wrong_number_is_a_difference_and_named(
    case: Path,
    tmp_path: Path,
    file: str,
    array: str,
    edit: Callable[[np.ndarray[Any, Any]], object],
    found: str,
) -> None:
    folder, longest = copied(case, tmp_path), last_of(case)
    change(folder / f"{file}.npz", array.format(longest), edit)
    (report,) = check_target_cases([folder], TargetOptions(splits=0))
    wrong = {name for name, one in report.findings.items() if not one}
    ways = ("exact", "padded") if file == "rounds" else ("whole", "1 a call", "16 a call")
    filled = {
        found.format(longest, way) if "{}, {}" in found else found.format(way) for way in ways
    }
    assert filled <= wrong
    assert report.verdict == "different"
    assert {name.rpartition(", ")[2] for name in wrong} == {found.rpartition(", ")[2]}
    if array == "{}.logits":
        done = run("golden", folder, "--splits", 0)
        assert done.exit_code == 3
        assert f"{longest}, whole, logits differs by" in done.output
        assert run("golden", folder, "--splits", 0, "--atol", "logits=0.1").exit_code == 0


def test_a_choice_that_leads_by_less_than_the_margin_may_be_another(
    case: Path, tmp_path: Path
) -> None:
    folder, longest = copied(case, tmp_path), last_of(case)
    change(folder / "prefill.npz", f"{longest}.argmax", add((17,), 1))
    with np.load(folder / "prefill.npz") as stored:
        lead = float(stored[f"{longest}.margin"][17])
    for margin, verdict in ((lead * 0.9, "different"), (lead * 1.1, "same")):
        options = TargetOptions(splits=0, margin=margin)
        assert [one.verdict for one in check_target_cases([folder], options)] == [verdict]


def edit_rounds(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "rounds.json"
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))

    return apply


def edit_array(file: str, name: str, array: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with np.load(folder / file) as stored:
            arrays = dict(stored)
        arrays.pop(name, None)
        np.savez(folder / file, **({} if array is None else {name: array}), **arrays)

    return apply


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (edit_array("prefill.npz", "p2.ids", None), "p2.ids is missing"),
        (edit_array("prefill.npz", "p2.ids", np.zeros(2)), r"p2.ids: got float64 \[2\]"),
        (edit_array("prefill.npz", "p2.rows", np.array([0, 2])), r"got 0 to 2, expected 0 to 1"),
        (edit_array("prefill.npz", "p2.odd", np.zeros(2)), r"unknown arrays \['p2.odd'\]"),
        (edit_array("prefill.npz", "taps", np.array([1, 1])), r"taps \[1, 1\], rounds.json"),
        (edit_array("rounds.npz", "s0.r0.features", np.zeros((1, 1, 1))), "s0.r0.features: got"),
        (edit_rounds(lambda c: c["sessions"][0].pop("kind")), "session 0: kind: got None"),
        (edit_rounds(lambda c: c["sessions"][1]["rounds"][0].update(accepted=9)), "accepted: got"),
        (
            edit_rounds(lambda c: c["sessions"][1]["committed_ids"].pop()),
            "session 1: committed_ids are not the prompt and the accepted rows",
        ),
        (
            edit_rounds(lambda c: c["sessions"][0].update(kind="forced", rounds=[])),
            "session 0: committed_ids",
        ),
        (edit_rounds(lambda c: c.update(version=7)), "got record version 7"),
        (edit_rounds(lambda c: c.update(sessions=3)), "expected an object with a list of sessions"),
        (lambda folder: (folder / "rounds.npz").unlink(), "rounds.npz: "),
        (lambda folder: (folder / "prefill.npz").write_bytes(b"x"), "cannot be read as an npz"),
        (
            lambda folder: (folder / "target" / "config.json").write_text("{}"),
            "made from another checkpoint",
        ),
        (lambda folder: shutil.rmtree(folder / "target"), "holds no target"),
    ],
)
def test_an_ill_formed_case_is_refused_with_its_cause(
    case: Path, tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    folder = copied(case, tmp_path)
    damage(folder)
    with pytest.raises(RecordError, match=told):
        read_target_case(folder)


def test_a_case_without_its_target_takes_the_one_given_and_no_other(
    case: Path, tmp_path: Path
) -> None:
    folder = copied(case, tmp_path)
    shutil.move(folder / "target", tmp_path / "elsewhere")
    assert run("golden", folder).exit_code == 1
    done = run("golden", folder, "--target", tmp_path / "elsewhere", "--splits", 0)
    assert done.exit_code == 0, done.output
    (tmp_path / "elsewhere" / "config.json").write_text("{}")
    with pytest.raises(RecordError, match="made from another checkpoint"):
        read_target_case(folder, tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="holds its target, but"):
        read_target_case(case, tmp_path / "elsewhere")
    assert read_target_case(case, case / "target").target == case / "target"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["golden", "CASE", "--atol", "logit=1"], "expected logits=NUMBER or features=NUMBER"),
        (["golden", "CASE", "--atol", "logits=1", "--atol", "logits=2"], "each once"),
        (["golden", "CASE", "--atol", "logits=nan"], "finite"),
        (["golden", "CASE", "--backend", "pytorch"], "expected drafter cases"),
        (["golden", "nothing", "--margin", "1"], "for target cases, none is given"),
        (["record", "--target", "T", "-o", "O"], r"expected --prompts FILE and --taps"),
        (["record", "--target", "T", "-o", "O", "--taps", "1,x"], "as 1,3,6"),
        (["record", "D", "--target", "T", "-o", "O", "--taps", "1"], "without DRAFT"),
    ],
)
def test_options_that_do_not_belong_are_wrong_usage(
    case: Path, arguments: list[str], told: str
) -> None:
    done = run(*(str(case) if one == "CASE" else one for one in arguments))
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("stated", "limits"),
    [
        (None, (2e-4, 2e-3, 1e-3)),
        ((1.07e-5, 1.7e-4), (2e-4, 2e-3, 1e-3)),
        ((3.3e-4, 2.2e-4), (3e-3, 2e-3, 6e-3)),
        ((3.2e-5, 7.1e-5), (3e-4, 7e-4, 1e-3)),
    ],
)
def test_limits_follow_what_the_record_states(
    stated: tuple[float, float] | None, limits: tuple[float, float, float]
) -> None:
    found = target_limits(stated)
    assert (found.logits, found.features, found.margin) == pytest.approx(limits)
    assert target_limits(stated, logits=1.0).margin == pytest.approx(2.0)
    assert target_limits(stated, features=0.5, margin=0.25).margin == pytest.approx(0.25)
