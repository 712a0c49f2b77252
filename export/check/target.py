"""The gate for a target's graph: against its PyTorch module, whole or a few layers of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from draftrt.errors import ExportError
from draftrt.export.check.compare import Arrays, compare_rounds
from draftrt.export.check.feeds import commits, random_states, target_feeds, target_rounds
from draftrt.export.check.layer_samples import (
    BothSides,
    Sample,
    compare_samples,
    layer_kinds,
    rows_for,
    samples,
)
from draftrt.export.check.lazy_weights import LazyWeights
from draftrt.export.check.one_layer import feature_sources
from draftrt.export.check.same_layers import check_same_layers
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.float32 import runnable, widened
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.shapes import PREFIX as ROPE
from draftrt.export.models.shapes import (
    decoder_shapes,
    kinds_of_layers,
    only_layers,
    stateful,
)
from draftrt.export.models.signature import NUM_STATES, target_signature
from draftrt.export.tracing.names import state_name
from draftrt.export.weights.tensors import LM_HEAD, PREFIX, TABLE
from draftrt.signature import LOGITS, NEXT_IDS, PAST, PRESENT, Signature, cache_names
from draftrt.spec import DecoderSpec, Precision, Profile

COMMITTED = 7  # rows that stand where a layer of a large graph is computed


def check_target(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    profile: Profile,
    max_context: int,
    *,
    scratch: Path | None = None,
) -> str:
    """Run prefill, steps and a long context on ONNX Runtime against the module; return a line.

    Args:
        path: ONNX file.
        spec: the target's layers.
        tensors: its weights.
        taps: layers whose results are the features.
        precision: of the graph.
        profile: operators of the graph.
        max_context: rows of each cache.
        scratch: takes the twin of a bf16 graph; None for the folder of ``path``.

    Raises:
        ExportError: logits, features or caches differ beyond the precision's limit.
    """
    is_twin = precision is Precision.BF16
    contents = {
        name: (widened(tensor) if is_twin else tensor).read() for name, tensor in tensors.items()
    }
    module = Decoder(spec, contents, taps=taps, profile=profile).eval()
    with runnable(path, precision, scratch) as (file, computed):
        table = target_signature(spec, taps, computed, max_context)
        fed, names = random_states(table), table.output_names()
        rng, calls = np.random.default_rng(0), target_rounds(spec, max_context)
        rounds = (
            (
                (length, rows),
                target_feeds(
                    spec, rng, new_rows=rows, context_length=length, commit_rows=commit_rows
                ),
            )
            for (length, rows), commit_rows in zip(calls, commits(calls), strict=True)
        )
        gaps = [gap for _, gap in compare_rounds(file, module, names, fed, rounds, computed)]
    note = " (bf16 graph as its float32 twin)" if is_twin else ""
    return f"target graph agrees with PyTorch over {len(gaps)} calls, worst {max(gaps):.1e}{note}"


def check_target_sampled(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
    written: Callable[[], object] = lambda: None,
) -> list[str]:
    """Compare a large target's graph with its module as `draftrt.export.check.drafter` says.

    Returns:
        One line for all weights, one for the features, one for each kind with several layers, one
        for each round.

    Raises:
        ExportError: a weight's bytes or the places of the features differ, a layer's nodes are not
            those of its kind, or logits or caches are beyond their limits.
    """
    kinds = layer_kinds(kinds_of_layers(spec), tensors)
    both = _TargetSides(f"{path.name}, ", spec, tensors, precision, max_context)

    def check_nodes() -> list[str]:
        return [*_check_features(path, taps), *check_same_layers(path, kinds)]

    head = tensors[both.head]
    todo = samples(kinds, [(0, 5), (max_context - 3, 3)], head.shape[0])
    return compare_samples(path, tensors, todo, (head.name,), both, check_nodes, written)


class _TargetSides(BothSides):
    """One layer of a target by its module and by its graph."""

    prefix = PREFIX

    def __init__(
        self,
        where: str,
        spec: DecoderSpec,
        tensors: Mapping[str, GraphTensor],
        precision: Precision,
        max_context: int,
    ) -> None:
        super().__init__(where, spec.num_layers, precision, max_context)
        self._spec, self._tensors = spec, tensors

    @property
    def head(self) -> str:
        """Name of the weight that makes the logits."""
        return LM_HEAD if LM_HEAD in self._tensors else TABLE

    def feed(self, sample: Sample) -> Arrays:
        """Return the inputs of a round but the caches."""
        length, count = sample.length, sample.count
        return target_feeds(
            self._spec, self.rng, new_rows=count, context_length=length, commit_rows=COMMITTED
        )

    def fed(self, sample: Sample) -> Arrays:
        """Return all inputs of a sample, the states of a layer that has some among them."""
        if stateful(self._spec) is None:
            return super().fed(sample)
        held = random_states(self._table(sample.layer))
        if kinds_of_layers(self._spec)[sample.layer] not in NUM_STATES:
            names = cache_names(PAST, 0)
            rows = rows_for([held[name] for name in names], self._used(sample))
            held |= dict(zip(names, rows, strict=True))
        renamed = {_of_layer(name, sample.layer): array for name, array in held.items()}
        return self.feed(sample) | renamed

    def written(self, sample: Sample) -> Sequence[str]:
        """Return the outputs that are the layer's caches or states."""
        names = self._table(sample.layer).output_names()
        return [_of_layer(name, sample.layer) for name in names if name.startswith(PRESENT)]

    def _table(self, layer: int) -> Signature:
        one = only_layers(self._spec, [layer])
        return target_signature(one, (), self.precision, self.max_context)

    def cache_shape(self, layer: int) -> tuple[int, int]:
        """Return the heads of a layer's keys and values, and the size of each."""
        return self._spec.cache_shape(layer)

    def module(self, sample: Sample, *, reads_all: bool = False) -> tuple[nn.Module, Sequence[str]]:
        """Return the module of one layer, and the names of its outputs before the caches."""
        one = replace(only_layers(self._spec, [sample.layer]), tie_word_embeddings=False)
        cut = {LM_HEAD: (self.head, sample.block.start, sample.block.stop)}
        weights = LazyWeights(self._tensors, sample.layer, cut=cut)
        names = [*decoder_shapes(one), *(name for name in self._tensors if name.startswith(ROPE))]
        read = weights.whole(names) if reads_all else weights
        return Decoder(one, read).eval(), (NEXT_IDS, LOGITS)


def _of_layer(name: str, layer: int) -> str:
    """Return the name of a cache or state of the only layer as that of this one."""
    return name.removesuffix("_0") + f"_{layer}" if name.endswith("_0") else name


def _check_features(path: Path, taps: tuple[int, ...]) -> list[str]:
    """The features join the results of the tapped layers, in the order of the taps."""
    wanted = [state_name(tap, PREFIX) for tap in taps]
    found = [name for names in feature_sources(path).values() for name in names]
    if found != wanted:
        raise ExportError(
            f"{path.name}: features are made of {found}, expected {wanted}",
            hint="the exported graph is wrong: a defect of draftrt, please report it",
        )
    return [f"features are the results of layers {list(taps)}"] if taps else []
