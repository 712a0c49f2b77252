"""Rules that look at the text hold row by row, drafts kept so far included."""

from __future__ import annotations

import numpy as np
import pytest

from draftrt.runtime.decoding.acceptance import Chooser
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import Proposal
from draftrt.runtime.targets.base import TargetRows

STOP, SECOND = 4, 2


def rows(num_rows: int) -> TargetRows:
    """A target that always wants to stop, and otherwise says token 2."""
    logits = np.tile(np.array([0, 0, 3, 0, 5], np.float32), (num_rows, 1))
    return TargetRows(
        features=np.zeros((1, num_rows, 0), np.float32), token_ids=logits.argmax(1), logits=logits
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-3])
@pytest.mark.parametrize(("num_new", "num_kept"), [(0, 3), (1, 2), (2, 1), (3, 0), (9, 0)])
def test_stop_tokens_are_forbidden_up_to_the_minimum_within_a_round(
    temperature: float, num_new: int, num_kept: int
) -> None:
    options = DecodeOptions(min_tokens=3, stop_ids=frozenset({STOP}), temperature=temperature)
    chooser = Chooser(options, np.random.default_rng(0))
    assert chooser.want_logits
    outcome = chooser.accept(Proposal(token_ids=np.full(3, SECOND)), rows(4), (1,), num_new)
    assert (outcome.num_accepted, outcome.bonus) == (num_kept, STOP)


def test_plain_greedy_decoding_needs_no_logits() -> None:
    for options in (
        DecodeOptions(),
        DecodeOptions(stop_ids=frozenset({STOP})),
        DecodeOptions(min_tokens=3),
        DecodeOptions(confidence_threshold=0.5),
    ):
        assert not Chooser(options, np.random.default_rng(0)).want_logits
    for options in (DecodeOptions(temperature=1), DecodeOptions(repetition_penalty=1.1)):
        assert Chooser(options, np.random.default_rng(0)).want_logits
