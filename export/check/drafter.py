"""The gate of a draft graph: whole where it is small, else layer by layer.

Of every weight of a large one rows are compared with the checkpoint
(`draftrt.export.check.onnx_file`), and each layer's nodes with those of the first layer of its kind
(`draftrt.export.check.same_layers`). What one layer of a kind computes, all of them do, so two
rounds are computed for each kind: with nothing before it on its first layer, and in the longest
context on its last, each between the graph's own beginning and end, on ONNX Runtime and by the
PyTorch module. Of the vocabulary's tables a round takes a block of rows: the first or the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from draftrt.compare.ties import CHOSEN_FROM
from draftrt.export.check.compare import Arrays, compare_rounds
from draftrt.export.check.extent import TABLES, Rows
from draftrt.export.check.feeds import random_caches, round_feeds, rounds_to_check, walk_to_compare
from draftrt.export.check.layer_samples import (
    BothSides,
    Sample,
    compare_samples,
    layer_kinds,
    samples,
)
from draftrt.export.check.lazy_weights import LazyWeights
from draftrt.export.check.reference import reference_module
from draftrt.export.check.same_layers import check_same_layers
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.float32 import runnable, widened
from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.models.shapes import PREFIX as ROPE
from draftrt.export.models.shapes import tensor_shapes
from draftrt.export.models.signature import NOISE
from draftrt.signature import PAST, PRESENT, Signature, cache_names
from draftrt.spec import DrafterSpec, Precision, VocabMap


def check_graph(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
) -> list[str]:
    """Run the graph on ONNX Runtime against its module.

    Args:
        path: ONNX file.
        spec: the drafter.
        tensors: the graph's weights.
        signature: of the graph.
        precision: of the graph.
        max_context: rows of each cache.

    Returns:
        One line a round.

    Raises:
        ExportError: an id, confidence or cache row differs beyond the precision's limit.
    """
    what = f"{precision.value} graph"
    if precision is Precision.BF16:
        what += " as its float32 twin"
        tensors = {name: widened(tensor) for name, tensor in tensors.items()}
    with runnable(path, precision) as (file, computed):
        walk = walk_to_compare(signature, computed)
        module = reference_module(
            spec, tensors, extra_outputs=CHOSEN_FROM, is_sampled=walk is not None
        )
        shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
        past, present = (
            [name for layer in range(spec.num_layers) for name in cache_names(beginning, layer)]
            for beginning in (PAST, PRESENT)
        )
        caches = dict(zip(past, random_caches([shape] * len(past), computed), strict=True))
        rng = np.random.default_rng(0)
        rounds = (
            (sizes, round_feeds(spec, rng, new_rows=sizes[1], context_length=sizes[0], walk=walk))
            for sizes in rounds_to_check(spec, max_context)
        )
        names, block = (*module.outputs, *present), spec.block_size
        compared = compare_rounds(file, module, names, caches, rounds, computed, block)
        return [
            f"{what}: context {length} + {rows} rows, same ids and caches as PyTorch"
            for (length, rows), _ in compared
        ]


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
            confidences or caches are beyond their limits.
    """
    both = _DrafterSides(f"{path.name}, ", spec, tensors, signature, precision, max_context)
    check_nodes = partial(check_same_layers, path, layer_kinds(spec.layers, tensors))
    return compare_samples(path, tensors, both.samples(), TABLES, both, check_nodes, written)


class _DrafterSides(BothSides):
    """One layer of a drafter by its module and by its graph."""

    def __init__(
        self,
        where: str,
        spec: DrafterSpec,
        tensors: Mapping[str, GraphTensor],
        signature: Signature,
        precision: Precision,
        max_context: int,
    ) -> None:
        super().__init__(where, spec.num_layers, precision, max_context, block=spec.block_size)
        self._spec, self._tensors = spec, tensors
        self._walk = walk_to_compare(signature, self.precision)

    def samples(self) -> list[Sample]:
        """Return what is computed: an empty context, and the longest."""
        rounds = [(0, 1), (self.max_context - self.block - 2, 2)]
        rows = self._tensors["lm_head.weight"].shape[0]
        todo = samples(layer_kinds(self._spec.layers, self._tensors), rounds, rows)
        if self._walk is None or self._spec.vocab_map is VocabMap.IDENTITY:
            return todo
        return [replace(sample, block=Rows(0, rows)) for sample in todo]  # it tells all their ids

    def feed(self, sample: Sample) -> Arrays:
        """Return the inputs of a round but the caches."""
        length, count = sample.length, sample.count
        feeds = round_feeds(
            self._spec, self.rng, new_rows=count, context_length=length, walk=self._walk
        )
        if NOISE in feeds and self._spec.selector is None:
            feeds[NOISE] = feeds[NOISE][..., : len(sample.block)].copy()
        return feeds

    def cache_shape(self, layer: int) -> tuple[int, int]:
        """Return the heads of a layer's keys and values, and the size of each."""
        return self._spec.num_kv_heads, self._spec.head_dim

    def module(self, sample: Sample, *, reads_all: bool = False) -> tuple[nn.Module, Sequence[str]]:
        """Return the module of one layer, and the names of its outputs before the caches."""
        one = replace(self._spec, layers=(self._spec.layers[sample.layer],), num_layers=1)
        cut = {name: (name, sample.block.start, sample.block.stop) for name in TABLES}
        weights = LazyWeights(self._tensors, sample.layer, cut=cut)
        kind = Drafter if self._walk is None else SampledDrafter
        names = [*tensor_shapes(one), *(name for name in self._tensors if name.startswith(ROPE))]
        read = weights.whole(names) if reads_all else weights
        made = kind(one, read, extra_outputs=CHOSEN_FROM)
        return made.eval(), made.outputs
