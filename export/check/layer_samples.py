"""Rounds of single layers of a written graph, on ONNX Runtime and by its PyTorch module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from draftrt.export.check.compare import (
    Arrays,
    call_module,
    compare_outputs,
    open_bare,
    rows_in_use,
    run_module,
    run_session,
)
from draftrt.export.check.extent import Rows, row_blocks
from draftrt.export.check.feeds import random_caches
from draftrt.export.check.one_layer import write_one_layer
from draftrt.export.check.onnx_file import check_weights
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.tracing.names import LAYER, state_name, values_of
from draftrt.export.weights.overflow import is_finite, overflow_in
from draftrt.export.weights.quantized import QuantizedRef
from draftrt.files import temporary_folder
from draftrt.onnx_session import load_onnxruntime
from draftrt.signature import PAST, PRESENT, cache_names
from draftrt.spec import Precision

SPARE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one layer.

    Attributes:
        layer: the layer.
        block: rows of the vocabulary's tables.
        length: cache rows committed before the round.
        count: new rows.
    """

    layer: int
    block: Rows
    length: int
    count: int


def layer_kinds(kinds: Sequence[Hashable], tensors: Mapping[str, GraphTensor]) -> list[Hashable]:
    """Return the layers' kinds, those whose weights are held in other forms apart.

    Args:
        kinds: of the layers by what they compute.
        tensors: the graph's weights as its file holds them.
    """
    forms: list[list[Hashable]] = [[] for _ in kinds]
    for name in sorted(tensors):
        match, ref = LAYER.match(name), tensors[name].source
        if match and isinstance(ref, QuantizedRef) and ref.scales is not None:
            blocks = ref.scales.shape[0] if len(ref.scales.shape) == 2 else 0
            own = (name[match.end() :], ref.scheme, blocks, ref.base_kind, ref.order is None)
            forms[int(match[2])].append(own)
    return [(kind, *form) for kind, form in zip(kinds, forms, strict=True)]


def samples(
    kinds: Sequence[Hashable], rounds: Sequence[tuple[int, int]], rows: int
) -> list[Sample]:
    """Return what is computed: each round once for every kind of layer.

    Args:
        kinds: of the layers.
        rounds: context length and new rows of two rounds.
        rows: of the vocabulary's tables.
    """
    made = []
    for kind in dict.fromkeys(kinds):
        own = [index for index, one in enumerate(kinds) if one == kind]
        chosen = (own[0], own[-1])
        for layer, block, sizes in zip(chosen, row_blocks(rows), rounds, strict=True):
            made.append(Sample(layer, block, *sizes))
    return made


class BothSides(ABC):
    """A model's single layers, by its PyTorch module and by its graph.

    Attributes:
        where: for messages.
        prefix: of the model's weights.
        num_layers: of the model.
        precision: what is computed in.
        max_context: rows of each cache.
        block: rows that a round writes behind the new ones.
        note: for the lines.
        rng: source of what is fed.
    """

    prefix = ""

    def __init__(
        self,
        where: str,
        num_layers: int,
        precision: Precision,
        max_context: int,
        *,
        block: int = 0,
    ) -> None:
        self.where, self.num_layers, self.block = where, num_layers, block
        self.precision = Precision.FP32 if precision is Precision.BF16 else precision
        self.note = ", in float32" if precision is Precision.BF16 else ""
        self.max_context = max_context
        self.rng = np.random.default_rng(0)
        self._caches: dict[tuple[int, ...], list[NDArray[Any]]] = {}

    @abstractmethod
    def feed(self, sample: Sample) -> Arrays:
        """Return what a sample is computed from but the caches."""

    @abstractmethod
    def cache_shape(self, layer: int) -> tuple[int, int]:
        """Return the heads of a layer's keys and values, and the size of each."""

    @abstractmethod
    def module(self, sample: Sample, *, reads_all: bool = False) -> tuple[nn.Module, Sequence[str]]:
        """Return the module of one layer, its weights read where used, and its outputs' names.

        It returns the caches behind those.
        """

    def fed(self, sample: Sample) -> Arrays:
        """Return all inputs of a sample, of the caches the rows in use and some more."""
        groups, dim = self.cache_shape(sample.layer)
        shape = (1, groups, self.max_context, dim)
        if shape not in self._caches:
            self._caches[shape] = random_caches([shape, shape], self.precision)
        rows = rows_for(self._caches[shape], self._used(sample))
        names = cache_names(PAST, sample.layer)
        return self.feed(sample) | dict(zip(names, rows, strict=True))

    def written(self, sample: Sample) -> Sequence[str]:
        """Return the outputs that are the layer's caches."""
        return cache_names(PRESENT, sample.layer)

    def want(self, sample: Sample, feeds: Arrays) -> Arrays:
        """Return what the module makes of it; called in another thread."""
        module, outputs = self.module(sample)
        state = state_name(0, self.prefix)  # the layer is the module's only one
        names = (*outputs, *self.written(sample))
        with values_of(state) as states:
            found = run_module(module, feeds, names)
        found[state_name(sample.layer, self.prefix)] = states[state].numpy()
        if self.precision is Precision.FP16 and not is_finite(found.values()):
            where = f"{self.where}context {sample.length}"
            read, _ = self.module(sample, reads_all=True)
            call = partial(call_module, read, feeds, names)
            if (error := overflow_in(read, call, where, layer=sample.layer)) is not None:
                raise error
        return self._kept(sample, found)

    def run(self, sample: Sample, session: Any, feeds: Arrays) -> Arrays:
        """Return what the graph of the sample's layer makes of it."""
        return self._kept(sample, run_session(session, feeds))

    def compare(self, sample: Sample, want: Arrays, got: Arrays) -> str:
        """Compare the two; return a line about it."""
        what = f"layer {sample.layer} of {self.num_layers}, vocabulary rows {sample.block}"
        sizes = (sample.length, sample.count)
        gap = compare_outputs(self.where + what, want, got, sizes, self.precision)
        where = f"context {sample.length} + {sample.count} rows"
        return f"{what}, {where}: same as PyTorch{self.note}, worst {gap:.1e}"

    def _kept(self, sample: Sample, found: Arrays) -> Arrays:
        used = self._used(sample)
        return {name: rows_in_use(name, array, used).copy() for name, array in found.items()}

    def _used(self, sample: Sample) -> int:
        return sample.length + sample.count + self.block


def rows_for(caches: Sequence[NDArray[Any]], used: int) -> list[NDArray[Any]]:
    """Return caches of the rows that a round uses, and some that it must not use."""
    return [np.ascontiguousarray(cache[:, :, : used + SPARE_ROWS]) for cache in caches]


def compare_samples(
    path: Path,
    tensors: Mapping[str, GraphTensor],
    todo: Sequence[Sample],
    tables: Collection[str],
    both: BothSides,
    check_nodes: Callable[[], list[str]],
    written: Callable[[], object],
) -> list[str]:
    """Compute the samples on both sides at once, PyTorch's while weights are still written.

    Args:
        path: ONNX file of all layers.
        tensors: its weights.
        todo: what is computed.
        tables: weights over the vocabulary.
        both: computes and compares.
        check_nodes: checks the file without its weights; returns lines about it.
        written: waits until all weights of the file are written, and checks the file.

    Returns:
        One line for all weights, those lines, and one for each sample.
    """
    with _one_thread(), ThreadPoolExecutor(1, thread_name_prefix="check") as pool:
        feeds = [both.fed(sample) for sample in todo]
        want = [pool.submit(both.want, *one) for one in zip(todo, feeds, strict=True)]
        try:
            load_onnxruntime()  # while weights are still written
            about_nodes = check_nodes()
            written()
            count, got = check_weights(path, tensors), []
            lines = [f"rows of all {count} weights are the checkpoint's", *about_nodes]
            for sample, fed in zip(todo, feeds, strict=True):
                about = {"prefix": both.prefix, "rows": sample.block, "tables": tables}
                with _one_layer_file(path, layer=sample.layer, **about) as small:
                    got.append(both.run(sample, open_bare(small, path.parent), fed))
            for sample, wanted, found in zip(todo, want, got, strict=True):
                lines.append(both.compare(sample, wanted.result(), found))
        finally:
            pool.shutdown(cancel_futures=True)
    return lines


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: blocks this small are not worth a second one."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@contextmanager
def _one_layer_file(source: Path, **about: Any) -> Iterator[Path]:
    """Give the graph of one layer for a while; its weights lie beside the graph it is made from."""
    with temporary_folder("layer") as folder:
        path = folder / source.name
        write_one_layer(source, path, **about)
        yield path
