"""Rounds of single layers of a written graph, on ONNX Runtime and by its PyTorch module."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftrt.export.check.compare import open_session
from draftrt.export.check.extent import Rows, row_blocks
from draftrt.export.check.one_layer import write_one_layer
from draftrt.export.check.onnx_file import check_weights
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.onnx_session import load_onnxruntime

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


class BothSides(Protocol):
    """A model's single layers, by its PyTorch module and by its graph."""

    def feed(self, sample: Sample) -> Any:
        """Return what a sample is computed from."""

    def want(self, sample: Sample, feeds: Any) -> Any:
        """Return what the module makes of it; called in another thread."""

    def run(self, sample: Sample, session: Any, feeds: Any) -> Any:
        """Return what the graph of the sample's layer makes of it."""

    def compare(self, sample: Sample, want: Any, got: Any) -> str:
        """Compare the two; return a line about it."""


def rows_for(caches: Sequence[NDArray[Any]], used: int) -> list[NDArray[Any]]:
    """Return caches of the rows that a round uses, and some that it must not use."""
    return [np.ascontiguousarray(cache[:, :, : used + SPARE_ROWS]) for cache in caches]


def compare_samples(
    path: Path,
    tensors: Mapping[str, GraphTensor],
    todo: Sequence[Sample],
    num_layers: int,
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
        num_layers: layers of the file.
        tables: weights over the vocabulary.
        both: computes and compares.
        check_nodes: checks the file without its weights; returns lines about it.
        written: waits until all weights of the file are written, and checks the file.

    Returns:
        One line for all weights, those lines, and one for each sample.
    """
    with _one_thread(), ThreadPoolExecutor(1, thread_name_prefix="check") as pool:
        feeds = [both.feed(sample) for sample in todo]
        want = [pool.submit(both.want, *one) for one in zip(todo, feeds, strict=True)]
        try:
            load_onnxruntime()  # while weights are still written
            about_nodes = check_nodes()
            written()
            count, got = check_weights(path, tensors), []
            lines = [f"rows of all {count} weights are the checkpoint's", *about_nodes]
            for sample, fed in zip(todo, feeds, strict=True):
                about = {"num_layers": num_layers, "rows": sample.block, "tables": tables}
                with _one_layer_file(path, layer=sample.layer, **about) as small:
                    got.append(both.run(sample, open_session(small, path.parent), fed))
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
    with tempfile.TemporaryDirectory(prefix="draftrt-layer-") as folder:
        path = Path(folder) / source.name
        write_one_layer(source, path, **about)
        yield path
