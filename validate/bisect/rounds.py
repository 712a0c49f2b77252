"""Runs of a graph and of its module over the same rounds, with values from the middle of both.

Every round starts from the module's own caches on both sides, so that a difference is made in the
round and the place where it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from draftrt.manifest import GraphEntry
from draftrt.onnx_session import (
    AS_WRITTEN,
    QUANTISED_PRODUCTS,
    onnxruntime_errors,
    open_session,
)
from draftrt.spec import Precision
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.module import RecordedPlace, Values, watched
from draftrt.validate.rounds.plan import PlannedRound, feeds_of

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
    plan: Sequence[PlannedRound],
    *,
    rows: int,
    precision: Precision,
) -> list[ReferenceRound]:
    """Run a module over rounds and keep what it computed on the way.

    Args:
        module: as it was traced.
        entry: its graph's entry in the manifest.
        plan: its rounds; a context length of 0 starts a sequence.
        rows: rows of the caches.
        precision: element type of the caches.
    """
    from draftrt.export.check.compare import call_module, to_numpy
    from draftrt.export.check.feeds import empty_caches

    caches = empty_caches(module.spec, precision, rows)
    past = [tensor.name for tensor in entry.signature.inputs][-len(caches) :]
    present = [tensor.name for tensor in entry.signature.outputs if tensor.alias]
    found = []
    for one, feeds in zip(plan, feeds_of(module.spec, entry, plan), strict=True):
        if one.context_length == 0:
            caches = empty_caches(module.spec, precision, rows)
        held = dict(zip(past, caches, strict=True))
        inputs = {name: feeds[name] for name in module.inputs}
        with watched() as values:
            out = call_module(module, inputs | held, (*module.outputs, *present))
        values |= {RecordedPlace(name): to_numpy(out[name]) for name in module.outputs}
        found.append(
            ReferenceRound(
                feeds={**feeds, **{name: cache.numpy() for name, cache in held.items()}},
                context_length=one.context_length,
                valid=one.context_length + one.new_rows + module.spec.block_size,
                values=values,
            )
        )
        caches = [out[name] for name in present]
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

        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        there = {*self._graph.output_names, *self._graph.input_names}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there
        )
        self.num_sessions += 1
        return open_session(
            model.SerializeToString(),
            self._graph.path.parent,
            settings={QUANTISED_PRODUCTS: AS_WRITTEN},
            log_severity_level=3,
        )
