"""The engine's own judgements and its summary; the steps themselves run in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.errors import ParityError
from draftrt.runtime.decoding.stats import Stats
from draftrt.runtime.pair import Completion
from draftrt.runtime.prompts import PLAIN
from draftrt.validate.engine.cli import as_text
from draftrt.validate.engine.engine import EngineReport, Step, check_lossless


def completion(*token_ids: int, text: str = "") -> Completion:
    return Completion(
        text=text, prompt_ids=(1,), token_ids=token_ids, finish="length", stats=Stats()
    )


def test_the_same_ids_are_lossless() -> None:
    check_lossless(completion(3, 4, 5), completion(3, 4, 5))


@pytest.mark.parametrize(
    ("ids", "said"),
    [((3, 9, 5), "id 1 is 9, expected 4"), ((3, 4), "2 ids, expected 3"), ((), "0 ids")],
)
def test_another_id_or_length_is_not(ids: tuple[int, ...], said: str) -> None:
    with pytest.raises(ParityError, match=said) as caught:
        check_lossless(completion(*ids), completion(3, 4, 5))
    assert caught.value.exit_code == 3


def test_the_summary_sums_up_seconds_and_keeps_a_long_sample_short() -> None:
    steps = [
        Step(name="export", result="fp16", seconds=7.25),
        Step(name="run", result="64 tokens", seconds=1.5),
    ]
    text = "".join(f"\nline {n}" for n in range(20))
    made = EngineReport(
        bundle=Path("out"),
        bundle_bytes=2_500_000,
        steps=steps,
        completion=completion(7, text=text),
        form=PLAIN,
        next_lines=("on the device:", "  draftrt run out"),
    )
    lines = as_text(made, "Begin:")
    assert lines[:4] == [
        "step    seconds  result",
        "export  7.2      fp16",
        "run     1.5      64 tokens",
        "total   8.8",
    ]
    assert lines[5] == "bundle  out  2.5 MB"
    sample = ["  Begin:", *(f"  line {n}" for n in range(4)), "  ... and 16 more"]
    assert lines[7:] == [*sample, "", "on the device:", "  draftrt run out"]


def test_without_a_sample_run_the_summary_ends_with_the_paths() -> None:
    assert as_text(EngineReport(bundle=Path("out")), "x")[-1] == "bundle  out  0.0 MB"
