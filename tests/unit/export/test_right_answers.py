"""Checkpoints written another way that mean the same: read, and computing exactly the same.

Each row changes how a good checkpoint states something: keys of another publisher or version, names
of another layout, another file format. What it computes must not change, rounding apart.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftrt.export.check.feeds import empty_caches, round_feeds
from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.drafter import LoadedDrafter, load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.models.signature import EXTRA_OUTPUTS
from draftrt.export.weights.tensors import draft_tensors
from draftrt.spec import DrafterSpec, Precision
from tests.toys.formats import drafter_arrays
from tests.toys.models import ToyDrafter
from tests.toys.toys import write_drafter
from tests.unit.export.right_answer_rows import TENSOR_ROWS, TOLERANCE, Same
from tests.unit.export.right_answer_rows_config import CONFIG_ROWS

CONTEXT = 40
ROWS = {**TENSOR_ROWS, **CONFIG_ROWS}


def rounds_of(loaded: LoadedDrafter) -> list[dict[str, NDArray[Any]]]:
    """Outputs of three rounds with fixed features."""
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    module = reference_module(loaded.spec, tensors, extra_outputs=EXTRA_OUTPUTS)
    caches = empty_caches(loaded.spec, Precision.FP32, CONTEXT)
    rng, length, rounds = np.random.default_rng(3), 0, []
    for rows in (7, 1, 4):
        feeds = round_feeds(loaded.spec, rng, new_rows=rows, context_length=length)
        with torch.no_grad():
            out = module(*(torch.from_numpy(feed) for feed in feeds.values()), *caches)
        named = zip(module.outputs, out, strict=False)
        rounds.append({name: tensor.numpy() for name, tensor in named})
        caches, length = list(out[len(module.outputs) :]), length + rows
    return rounds


def facts_of(spec: DrafterSpec) -> dict[str, Any]:
    """What a spec says, apart from where it was read and how it was stored."""
    facts = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    for name in ("sources", "warnings", "checkpoint_format", "dtype", "vocab_map"):
        del facts[name]
    return facts


def write_changed(folder: Path, toy: ToyDrafter, row: Same) -> Path:
    """Write the same weights in the row's way."""
    arrays = drafter_arrays(toy)
    changed = row.arrays(arrays) if row.arrays else arrays
    gone = tuple(name for name in arrays if name not in changed)
    overrides = {**toy.overrides, **row.config}
    return write_drafter(
        folder,
        dataclasses.replace(toy, overrides=overrides, omit=gone, extra=changed, **row.fields),
    )


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_another_way_to_write_a_checkpoint_changes_nothing(
    row: Same, tmp_path: Path, target: TargetCheckpoint
) -> None:
    toy = ToyDrafter(kind=row.kind, **row.toy)
    stated = {"sample_from_anchor": None, **row.options}
    before = load_drafter(write_drafter(tmp_path / "before", toy), target)
    folder = write_changed(tmp_path / "after", toy, row)
    after = load_drafter(folder, target, sample_from_anchor=stated["sample_from_anchor"])
    changes = {"num_target_layers"}  # a check, not a fact of the computation
    assert {k: v for k, v in facts_of(before.spec).items() if k not in changes} == {
        k: v for k, v in facts_of(after.spec).items() if k not in changes
    }
    for want, got in zip(rounds_of(before), rounds_of(after), strict=True):
        assert want.keys() == got.keys()
        for name, expected in want.items():
            if expected.dtype == np.int64:
                assert row.tolerance > TOLERANCE or np.array_equal(expected, got[name]), name
                continue
            limit = row.tolerance * max(1.0, float(np.abs(expected).max()))
            assert float(np.abs(expected - got[name]).max()) < limit, name
