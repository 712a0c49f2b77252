"""Where in an ONNX graph the values are that its module names, and the nodes between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from draftrt.export.graph.edit import makers, readers
from draftrt.export.weights.tensors import CODES
from draftrt.signature import PRESENT, cache_names
from draftrt.validate.bisect.module import CACHES, INTO, RecordedPlace

INPUT = {"Gemm": 0, "RMSNormalization": 0, "ArgMax": 0, "Gather": 1}  # beside weights and tables
FIRST = {"Gemm": 0, "Gather": 1, "Mul": 0}


class Graph:
    """An ONNX graph with its nodes by what they make and what they read.

    Attributes:
        model: the ONNX model, weights not loaded.
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        from draftrt.onnx_session import read_onnx

        self.path = path
        self.model = read_onnx(path)
        graph = self.model.graph
        self._order = {node.output[0]: index for index, node in enumerate(graph.node)}
        self._maker, self._readers = makers(graph), readers(graph)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [one.name for one in self.model.graph.input]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [one.name for one in self.model.graph.output]

    def values(self, places: Iterable[RecordedPlace]) -> dict[RecordedPlace, str]:
        """Return the name of the value at every place that the graph has."""
        found = {place: self._value(place) for place in places}
        return {place: name for place, name in found.items() if name}

    def between(self, value: str, known: Collection[str]) -> list[Any]:
        """Return the nodes that lead to a value from known ones, in the graph's order."""
        found: dict[str, Any] = {}
        waiting = [value]
        while waiting:
            node = self._maker.get(waiting.pop())
            if node is None or node.output[0] in found:
                continue
            found[node.output[0]] = node
            waiting += [name for name in node.input if name and name not in known]
        return sorted(found.values(), key=lambda node: self._order[node.output[0]])

    def reads(self, weight: str) -> bool:
        """Whether any node reads a weight."""
        return weight in self._readers or weight + CODES in self._readers

    def entering(self, place: RecordedPlace) -> tuple[Any, int] | None:
        """Return the node into which the value of a place goes, and as which of its inputs.

        Of a norm in parts, a product in parts, or a lookup whose rows are scaled, that is the first
        of its kind that is named below the module; a product may take its inputs sorted.
        """
        node = self._maker.get(place.name)
        if node is None or node.op_type not in INPUT:
            below = [
                one for one in self.model.graph.node if one.name.startswith(place.module + ".")
            ]
            node = next((one for kind in FIRST for one in below if one.op_type == kind), None)
        if node is None:
            return None
        sorts = self._maker.get(node.input[0])
        if node.op_type == "Gemm" and sorts is not None and sorts.name.endswith(".gather"):
            return sorts, 0
        return node, (INPUT | FIRST)[node.op_type]

    def _value(self, place: RecordedPlace) -> str:
        if place.side == INTO:
            found = self.entering(place)
            return "" if found is None else str(found[0].input[found[1]])
        name = place.name
        if place.layer is not None and place.step in CACHES:
            name = cache_names(PRESENT, place.layer)[CACHES.index(place.step)]
        return name if name in self._maker else ""
