"""Who sees whom, against a predicate written from the table of window edges, one pair at a time."""

from __future__ import annotations

import itertools

import pytest
import torch

from draftrt.export.models.attention import mask_of, needs_mask
from draftrt.spec import LayerSpec, WindowEdge
from tests.parity.slow_drafter import Rule

BLOCK, CAPACITY = 5, 24
EDGES = {WindowEdge.QUERY: False, WindowEdge.ANCHOR: True}


@pytest.mark.parametrize("edge", list(WindowEdge), ids=lambda edge: edge.value)
@pytest.mark.parametrize("is_causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 5, 6, 11, 100])
def test_a_mask_is_the_rule_at_every_context_length(
    edge: WindowEdge, is_causal: bool, window: int | None
) -> None:
    layer = LayerSpec(is_causal=is_causal, window=window, window_edge=edge)
    rule = Rule(causal=is_causal, window=window, from_anchor=EDGES[edge])
    for start, new in itertools.product(range(1, CAPACITY - BLOCK + 1), (1, 2, 7)):
        if new > start:
            continue
        positions = torch.arange(start - new, start + BLOCK)
        got = mask_of(layer, positions[-BLOCK:], CAPACITY)
        assert got.shape == (1, 1, BLOCK, CAPACITY)
        for row, key in itertools.product(range(BLOCK), range(CAPACITY)):
            want = key < start + BLOCK and rule.sees(row, key, start)
            assert bool(got[0, 0, row, key]) is want, (start, new, row, key)


def test_only_a_full_layer_that_looks_both_ways_needs_no_mask() -> None:
    assert not needs_mask(LayerSpec(is_causal=False))
    assert needs_mask(LayerSpec(is_causal=True))
    assert needs_mask(LayerSpec(is_causal=False, window=3))
