"""The gate for large models: every layer by its structure, a few whole, the vocabulary by blocks.

Of every weight rows are compared with the checkpoint (`draftrt.export.check.onnx_file`), and each
layer's nodes with those of the first layer of its kind (`draftrt.export.check.same_layers`). What
one
layer of a kind computes, all of them do, so two rounds are computed for each kind: with nothing
before it on its first layer, and in the longest context on its last, each between the graph's own
beginning and end, on ONNX Runtime and by the PyTorch module. Of the vocabulary's tables a round
takes a block of rows: the first or the last.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from draftrt.export.check.compare import (
    CHOSEN_FROM,
    TOLERANCE,
    Feeds,
    _compare,
    check_finite,
    compare_round,
    relative_gap,
    round_differs,
    run_module,
    run_session,
)
from draftrt.export.check.extent import TABLES, Rows
from draftrt.export.check.feeds import random_caches, round_feeds, walk_to_compare
from draftrt.export.check.layer_samples import Sample, compare_samples, rows_for, samples
from draftrt.export.check.lazy_weights import LazyWeights
from draftrt.export.check.same_layers import check_same_layers
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.float32 import widened, write_float32_twin
from draftrt.export.graph.layers import state_name
from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.models.shapes import PREFIX as ROPE
from draftrt.export.models.shapes import tensor_shapes
from draftrt.export.models.signature import Walk
from draftrt.export.weights.overflow import is_finite
from draftrt.signature import Signature
from draftrt.spec import DrafterSpec, Precision, VocabMap


def check_draft_sampled(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
    written: Callable[[], object] = lambda: None,
) -> list[str]:
    """Compare a large draft graph with its module; see the top of this file.

    Args:
        path: ONNX file.
        spec: the drafter.
        tensors: the graph's weights.
        signature: of the graph.
        precision: of the graph.
        max_context: rows of each cache.
        written: waits until all weights of the file are written, and checks the file.

    Returns:
        One line for all weights, one for each kind with several layers, one for each round.

    Raises:
        ExportError: a weight's bytes differ, a layer's nodes are not those of its kind, or ids,
            confidences or caches are beyond the tolerance.
    """
    computed = Precision.FP32 if precision is Precision.BF16 else precision
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    both = _DrafterSides(
        f"{path.name}, ",
        spec,
        tensors,
        computed,
        ", in float32" if precision is Precision.BF16 else "",
        walk_to_compare(signature, computed),
        random_caches([shape, shape], computed),
    )
    check_nodes = partial(check_same_layers, path, spec.layers)
    todo = both.samples(max_context)
    return compare_samples(path, tensors, todo, spec.num_layers, TABLES, both, check_nodes, written)


@dataclass(frozen=True, slots=True)
class _DrafterSides:
    """One layer of a drafter by its module and by its graph.

    Attributes:
        where: for messages.
        spec: the drafter.
        tensors: its weights.
        precision: what is computed in.
        note: about that, for the lines.
        walk: how a sampled graph chooses.
        caches: keys and values, of every round.
    """

    where: str
    spec: DrafterSpec
    tensors: Mapping[str, GraphTensor]
    precision: Precision
    note: str
    walk: Walk | None
    caches: list[Any]
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def samples(self, max_context: int) -> list[Sample]:
        """Return what is computed: an empty context, and the longest."""
        rounds = [(0, 1), (max_context - self.spec.block_size - 2, 2)]
        rows = self.tensors["lm_head.weight"].shape[0]
        todo = samples(self.spec.layers, rounds, rows)
        if self.walk is None or self.spec.vocab_map is VocabMap.IDENTITY:
            return todo
        return [replace(sample, block=Rows(0, rows)) for sample in todo]  # it tells all their ids

    def feed(self, sample: Sample) -> Feeds:
        """Return the inputs of a round but the caches."""
        length, count = sample.length, sample.count
        feeds: Feeds = dict(
            round_feeds(self.spec, self.rng, new_rows=count, context_length=length, walk=self.walk)
        )
        if "noise" in feeds and self.spec.selector is None:
            feeds["noise"] = feeds["noise"][..., : len(sample.block)].copy()
        return feeds

    def want(self, sample: Sample, feeds: Feeds) -> dict[str, Any]:
        """Return what the module makes of them, of the caches the rows in use."""
        block = sample.block
        cut = {name: (name, block.start, block.stop) for name in TABLES}
        kind = Drafter if self.walk is None else SampledDrafter
        weights = LazyWeights(self.tensors, sample.layer, cut=cut)
        one = self._one(sample)
        module = kind(one, weights, extra_outputs=CHOSEN_FROM, with_states=True)
        used = self._used(sample)
        caches = rows_for(self.caches, used)
        found = run_module(module.eval(), feeds, caches)
        if self.precision is Precision.FP16 and not is_finite(found["caches"]):
            names = [*tensor_shapes(one), *(name for name in self.tensors if name.startswith(ROPE))]
            read = kind(one, weights.whole(names), extra_outputs=CHOSEN_FROM, with_states=True)
            where, layer = f"{self.where}context {sample.length}", sample.layer
            check_finite(read.eval(), feeds, caches, found, self.precision, where, layer=layer)
        *written, _, found["state"] = found["caches"]
        found["caches"] = [cache[:, :, :used].copy() for cache in written]
        return found

    def run(self, sample: Sample, session: Any, feeds: Feeds) -> tuple[Feeds, list[Any]]:
        """Return what the graph makes of them, and the caches, the rows in use."""
        used = self._used(sample)
        got, caches = run_session(session, feeds, rows_for(self.caches, used))
        return got, [cache[:, :, :used].copy() for cache in caches]

    def compare(self, sample: Sample, want: dict[str, Any], got: tuple[Feeds, list[Any]]) -> str:
        """Compare the two; return a line about it."""
        found, caches = got
        what = f"layer {sample.layer} of {self.spec.num_layers}, vocabulary rows {sample.block}"
        sizes = (sample.length, sample.count)
        name, one = self.where + what, self._one(sample)
        compare_round(name, one, want, found, caches, sizes, self.precision)
        gap = relative_gap(want["state"], found[state_name(sample.layer)])
        if not gap <= TOLERANCE[self.precision]:
            error = f"the layer's result by {gap:.2e} (relative to its largest value)"
            raise round_differs(name, sizes, error)
        where = f"context {sample.length} + {sample.count} rows"
        return f"{what}, {where}: same as PyTorch{self.note}"

    def _used(self, sample: Sample) -> int:
        return sample.length + sample.count + self.spec.block_size

    def _one(self, sample: Sample) -> DrafterSpec:
        return replace(self.spec, layers=(self.spec.layers[sample.layer],), num_layers=1)


def check_graph(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
) -> list[str]:
    """Run the graph on ONNX Runtime against its module.

    Returns:
        One line a round: what was compared and the largest difference.

    Raises:
        ExportError: an id, confidence or cache row differs beyond the precision's tolerance.
    """
    if precision is Precision.BF16:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".twin-") as folder:
            twin = Path(folder) / path.name
            write_float32_twin(path, twin)
            wide = {name: widened(tensor) for name, tensor in tensors.items()}
            what = "bf16 graph as its float32 twin"
            return _compare(twin, spec, wide, signature, Precision.FP32, max_context, what)
    what = f"{precision.value} graph"
    return _compare(path, spec, tensors, signature, precision, max_context, what)
