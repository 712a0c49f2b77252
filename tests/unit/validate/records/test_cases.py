"""Golden cases are read whole or refused with everything that is wrong with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.validate.records.cases import read_case
from draftrt.validate.records.files import RecordError


def good_facts() -> dict[str, Any]:
    return {
        "reference": "some code",
        "target_vocab_size": 10,
        "num_target_layers": 3,
        "about": "a case for the reader's tests",
    }


def good_arrays() -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"embed_tokens": np.ones((10, 4), np.float32)}
    for index, rows in enumerate((3, 1)):
        arrays |= {
            f"r{index}.anchor": np.array(7),
            f"r{index}.target_hidden": np.ones((1, rows, 8), np.float32),
            f"r{index}.tokens": np.array([1, 2]),
            f"r{index}.logits": np.zeros((2, 10), np.float32),
        }
    return arrays


@dataclass
class Draft:
    """What a case will hold."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=good_facts)
    arrays: dict[str, NDArray[Any]] = field(default_factory=good_arrays)

    def write(self) -> Path:
        (self.folder / "draft").mkdir(parents=True)
        (self.folder / "case.json").write_text(json.dumps(self.facts))
        np.savez(self.folder / "expected.npz", **self.arrays)  # type: ignore[arg-type]
        return self.folder


@pytest.fixture
def case(tmp_path: Path) -> Draft:
    return Draft(tmp_path / "case")


def test_a_case_is_read_with_its_rounds_in_order(case: Draft) -> None:
    case.arrays |= {"r1.confidence": np.array([0.25, 0.5], np.float32)}
    found = read_case(case.write())
    assert (found.name, found.target_vocab_size, found.num_target_layers) == ("case", 10, 3)
    assert [one.target_hidden.shape[1] for one in found.rounds] == [3, 1]
    assert [one.anchor for one in found.rounds] == [7, 7]
    assert set(found.rounds[0].expected) == {"tokens", "logits"}
    assert set(found.rounds[1].expected) == {"tokens", "logits", "confidence"}
    assert found.tables["embed_tokens"].shape == (10, 4)
    assert found.tolerance is None


def test_a_case_without_a_version_is_version_one_and_may_say_so(case: Draft) -> None:
    case.facts |= {"version": 1, "tolerance": 2e-3}
    assert read_case(case.write()).tolerance == 2e-3


def test_another_version_is_refused(case: Draft) -> None:
    case.facts["version"] = 3
    with pytest.raises(RecordError, match="got record version 3, expected 1 or 2"):
        read_case(case.write())


@pytest.mark.parametrize("name", ["case.json", "expected.npz", "draft"])
def test_a_missing_part_is_named(case: Draft, name: str) -> None:
    folder = case.write()
    path = folder / name
    path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(RecordError, match=f"missing {name}"):
        read_case(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("reference", None, "reference: got None, expected a text"),
        ("target_vocab_size", 0, "target_vocab_size: got 0, expected a positive integer"),
        ("target_vocab_size", True, "got True, expected a positive integer"),
        ("num_target_layers", "9", "num_target_layers: got '9'"),
        ("tolerance", -1e-4, "tolerance: got -0.0001, expected a positive number"),
        ("surprise", 1, "unknown key 'surprise'"),
    ],
)
def test_a_wrong_fact_is_refused(case: Draft, key: str, value: Any, said: str) -> None:
    case.facts[key] = value
    with pytest.raises(RecordError, match=said):
        read_case(case.write())


def test_all_missing_facts_are_told_at_once(case: Draft) -> None:
    case.facts = {}
    with pytest.raises(RecordError, match=r"reference is missing; .*num_target_layers is missing"):
        read_case(case.write())


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("r0.anchor", np.array([7]), r"r0.anchor: got int64 \[1\], expected one id"),
        ("r0.anchor", np.array(7.0), "r0.anchor: got float64"),
        ("r1.target_hidden", np.ones((1, 8), np.float32), r"r1.target_hidden: .*\[1, 8\]"),
        ("r1.target_hidden", np.ones((1, 0, 8), np.float32), "r1.target_hidden"),
        ("r1.target_hidden", np.ones((1, 2, 8)), "got float64"),
        ("r1.target_hidden", np.ones((1, 2, 9), np.float32), r"widths \[8, 9\], expected one"),
        ("r0.logits", np.zeros((3, 10), np.float32), "as many rows as tokens"),
        ("r0.logits", np.zeros(2, np.float32), "expected floats with 2 axes"),
        ("r0.tokens", np.array([0.5, 1.0]), "r0.tokens: got float64"),
        ("r0.guess", np.zeros(2), "unknown array 'r0.guess'"),
        ("weights", np.zeros(2), "unknown array 'weights'"),
        ("r3.tokens", np.array([1, 2]), r"got rounds \[0, 1, 3\]"),
        ("r01.tokens", np.array([1, 2]), "unknown array 'r01.tokens'"),
        ("lm_head", np.ones(3, np.float32), r"lm_head: got float32 \[3\]"),
    ],
)
def test_an_ill_formed_array_is_refused(
    case: Draft, name: str, array: NDArray[Any], said: str
) -> None:
    case.arrays[name] = array
    with pytest.raises(RecordError, match=said) as caught:
        read_case(case.write())
    assert "docs/records.md" in caught.value.hint


def test_a_round_without_its_feeds_or_tokens_is_refused(case: Draft) -> None:
    del case.arrays["r1.anchor"], case.arrays["r1.tokens"]
    with pytest.raises(RecordError, match="r1: anchor, tokens missing"):
        read_case(case.write())


def test_a_case_without_rounds_is_refused(case: Draft) -> None:
    case.arrays = {}
    with pytest.raises(RecordError, match=r"got rounds \[\], expected r0"):
        read_case(case.write())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x93NUMPY"])
def test_a_broken_npz_is_refused(case: Draft, content: bytes) -> None:
    folder = case.write()
    (folder / "expected.npz").write_bytes(content)
    with pytest.raises(RecordError, match="cannot be read as an npz file"):
        read_case(folder)


def test_pickled_arrays_are_never_opened(case: Draft) -> None:
    case.arrays["r0.logits"] = np.array([{}, {}], object)
    with pytest.raises(RecordError, match="npz file of plain arrays"):
        read_case(case.write())


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"])
def test_a_broken_case_json_is_refused(case: Draft, text: str) -> None:
    folder = case.write()
    (folder / "case.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(RecordError, match=r"case\.json"):
        read_case(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no golden case there"):
        read_case(tmp_path / "nowhere")
