"""Every family, head, attention, rotary embedding and vocabulary against a slow drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.config.keys import MARKOV_TYPES, ROPE_TYPES
from draftrt.export.models.drafter import BACKBONES, FAMILIES
from draftrt.export.models.shapes import HEADS, LAYERS
from draftrt.export.weights.tensors import draft_tensors
from draftrt.spec import Precision
from draftrt.validate.rounds.module import ReferenceRounds
from tests.parity.family_checkpoints import make_case
from tests.parity.family_rounds import OUTPUTS, compare_rounds
from tests.parity.family_rows import (
    BACKBONE_OF_TAG,
    FAMILY_OF_TAG,
    ROWS,
    Row,
    all_pairs,
    choices_of_row,
    pairs_of,
)

pytestmark = pytest.mark.parity
CONTEXT = 48


def test_every_pair_of_choices_has_a_row() -> None:
    covered = set().union(*(pairs_of(row) for row in ROWS))
    assert covered == all_pairs()


def test_every_registered_family_and_backbone_has_a_row() -> None:
    tags = frozenset().union(*(choice.tags for row in ROWS for choice in choices_of_row(row)))
    assert {FAMILY_OF_TAG[tag] for tag in tags & set(FAMILY_OF_TAG)} == set(FAMILIES) == set(HEADS)
    assert {BACKBONE_OF_TAG[tag] for tag in tags & set(BACKBONE_OF_TAG)} == set(BACKBONES)
    assert set(BACKBONES) == set(LAYERS)
    means = [choice.means for row in ROWS for choice in choices_of_row(row)]
    assert {m["rope"]["rope_type"] for m in means if "rope" in m} == set(ROPE_TYPES)
    assert {m["markov"] for m in means if m.get("markov")} == set(MARKOV_TYPES)


@pytest.mark.parametrize("row", ROWS, ids=", ".join)
def test_a_drafter_computes_what_the_slow_one_does(
    row: Row, tmp_path: Path, toy_target: TargetCheckpoint, toy_tables: dict[str, Any]
) -> None:
    case = make_case(row, tmp_path / "draft", toy_target, toy_tables)
    loaded = load_drafter(case.folder, case.target)
    assert loaded.spec.num_draft_tokens == case.num_drafts
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    module = reference_module(loaded.spec, tensors, extra_outputs=OUTPUTS)
    fast = ReferenceRounds(module, Precision.FP32, CONTEXT)
    compare_rounds(case, fast.run, seed=len(row[0]))
