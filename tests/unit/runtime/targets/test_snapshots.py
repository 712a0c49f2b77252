"""Kept snapshots: worth something while the rows below them hold their tokens, and few enough."""

from __future__ import annotations

import random

import numpy as np
import pytest

from draftrt.runtime.targets.base import Snapshot
from draftrt.runtime.targets.snapshots import CachedText, common_length

KILOBYTE = 1024


def snapshot(length: int, first: int | None = None, size: int = KILOBYTE) -> Snapshot:
    states = {"past_state_0": np.zeros(size, np.int8)}
    return Snapshot(length=length, first=length if first is None else first, states=states)


def text(*lengths: int, most: int = 4 * KILOBYTE, tokens: int = 2000) -> CachedText:
    """Return a text of the tokens 0, 1, ... with snapshots kept in this order."""
    cached = CachedText(most)
    cached.end(0, range(tokens))
    for length in lengths:
        cached.keep(snapshot(length))
    return cached


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 600])
def test_two_texts_are_alike_up_to_the_first_other_token(length: int) -> None:
    one = list(range(1000))
    other = (*range(length), -1, *range(length + 1, 900))
    assert common_length(one, other) == common_length(other, one) == length
    assert common_length(one, one[:length]) == length


def test_the_nearest_snapshot_leads_back_to_the_most_tokens() -> None:
    cached = text(100, 400)
    cached.keep(snapshot(700, first=650))
    found = {at: cached.nearest(at) for at in (99, 100, 399, 649, 650, 700, 900)}
    lengths = {at: None if one is None else min(one.length, at) for at, one in found.items()}
    assert lengths == {99: None, 100: 100, 399: 100, 649: 400, 650: 650, 700: 700, 900: 700}


def test_another_token_ends_the_snapshots_behind_it_and_the_same_one_does_not() -> None:
    cached = text(100, 400)
    cached.keep(snapshot(700, first=650))
    calls: list[tuple[int, list[int], tuple[int, ...]]] = [
        (80, [*range(80, 720)], (100, 400, 700)),  # writes what was there
        (600, [*range(600, 680), -1, 682], (100, 400, 680)),  # the last leads to row 680 still
        (640, [-1], (100, 400)),
        (50, [*range(50, 60)], ()),  # rows behind the call's may be gone with it
    ]
    for length, token_ids, left in calls:
        cached.begin(length, token_ids)
        assert cached.lengths == left
    assert cached.token_ids == list(range(60))


def test_the_snapshot_that_saves_least_goes_first_and_never_the_new_one() -> None:
    assert text(100, 500, 900, 1000).lengths == (100, 500, 900, 1000)
    assert text(100, 500, 900, 1000, 1700).lengths == (500, 900, 1000, 1700)
    assert text(450, 500, 900, 1000, 1001).lengths == (450, 900, 1000, 1001)
    assert text(600, 500, 600).lengths == (500, 600)  # one a length


def test_no_more_bytes_are_kept_than_allowed() -> None:
    rng = random.Random(3)
    cached = CachedText(10 * KILOBYTE)
    cached.end(0, range(10_000))
    for _ in range(500):
        cached.keep(snapshot(rng.randint(1, 10_000), size=rng.randint(1, 4 * KILOBYTE)))
        assert 0 < cached.num_bytes <= 10 * KILOBYTE
        assert list(cached.lengths) == sorted(set(cached.lengths))
    kept = cached.lengths
    cached.keep(snapshot(5, size=11 * KILOBYTE))  # larger than all the room
    assert cached.lengths == kept
    none = text(100, most=0)
    assert (none.lengths, none.num_bytes) == ((), 0)
