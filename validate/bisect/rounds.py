"""Runs of a graph and of its module over the same rounds, with values from the middle of both.

Every round starts from the module's own caches on both sides, so that a difference is made in the
round and the place where it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.manifest import GraphEntry
from draftrt.onnx_session import load_onnxruntime, point_to_weights
from draftrt.runtime.backends.ort import AS_WRITTEN, QUANTISED_PRODUCTS
from draftrt.spec import Precision
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.module import RecordedPlace, Values, to_array, watched
from draftrt.validate.rounds.runners import onnxruntime_errors

if TYPE_CHECKING:
    from draftrt.export.models.drafter import Drafter

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRound:
    """One round as the module computed it.

    Attributes:
        feeds: every input of a graph for it, caches included.
        context_length: rows committed before it.
        valid: cache rows in use after it.
        values: what the module computed, in order.
    """

    feeds: Arrays
    context_length: int
    valid: int
    values: Values


def reference_rounds(
    module: Drafter,
    entry: GraphEntry,
    plan: Sequence[tuple[int, int]],
    *,
    rows: int,
    precision: Precision,
) -> list[ReferenceRound]:
    """Run a module over rounds and keep what it computed on the way.

    Args:
        module: as it was traced.
        entry: its graph's entry in the manifest.
        plan: (context length, new rows) of each round; a length of 0 starts a sequence.
        rows: rows of the caches.
        precision: element type of the caches.
    """
    import torch

    from draftrt.export.check.feeds import empty_caches, round_feeds, walk_to_compare

    rng = np.random.default_rng(0)
    walk = walk_to_compare(entry.signature, entry.precision)
    caches = empty_caches(module.spec, precision, rows)
    names = [tensor.name for tensor in entry.signature.inputs][-len(caches) :]
    found = []
    for length, new_rows in plan:
        if length == 0:
            caches = empty_caches(module.spec, precision, rows)
        feeds = round_feeds(module.spec, rng, new_rows=new_rows, context_length=length, walk=walk)
        pasts = {name: cache.numpy() for name, cache in zip(names, caches, strict=True)}
        inputs = [torch.from_numpy(np.ascontiguousarray(feeds[name])) for name in module.inputs]
        with torch.no_grad(), watched(module) as values:
            out = module(*inputs, *caches)
        count = len(module.outputs)
        for name, tensor in zip(module.outputs, out[:count], strict=True):
            values[RecordedPlace(name, 0)] = to_array(tensor)
        valid = length + new_rows + module.spec.block_size
        found.append(
            ReferenceRound(
                feeds={**feeds, **pasts}, context_length=length, valid=valid, values=values
            )
        )
        caches = list(out[count:])
    return found


class MarkedGraph:
    """A graph whose inner values can be asked for, some at a time; each asking opens a session."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.num_sessions = 0

    def run(self, names: Iterable[str], rounds: Sequence[ReferenceRound]) -> list[Arrays]:
        """Return the named values in each round.

        Args:
            names: of any values of the graph; its outputs and inputs are given too.
            rounds: what it is fed.

        Raises:
            BackendError: ONNX Runtime refuses the graph.
        """
        found = []
        with onnxruntime_errors(self._graph.path):
            session = self._open(names)
            outputs = [one.name for one in session.get_outputs()]
            for one in rounds:
                feeds = {name: one.feeds[name] for name in self._graph.input_names}
                got = session.run(outputs, feeds)
                found.append({**feeds, **dict(zip(outputs, got, strict=True))})
        return found

    def _open(self, names: Iterable[str]) -> Any:
        import onnx

        onnxruntime = load_onnxruntime()
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        there = {*self._graph.output_names, *self._graph.input_names}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry(QUANTISED_PRODUCTS, AS_WRITTEN)
        mapped = point_to_weights(options, self._graph.path.parent)
        self.num_sessions += 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        del mapped  # which it needed until now
        return session
