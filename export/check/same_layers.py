"""Proof on a written file that its layers of a kind are one computation over their own weights.

What a layer computes is an expression over its own weights and caches, the residual stream before
it, and what all layers share. Every expression gets a number, the same for the same operator and
attributes over the same operands; a weight goes by its name without the layer's number, a constant
by its content. Two layers are one computation when their results have the same numbers, whatever
their nodes are called and in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftrt.errors import ExportError
from draftrt.export.graph.layers import CACHE, SHARED, graph_parts, state_name
from draftrt.export.weights.tensors import WEIGHT
from draftrt.onnx_session import read_onnx


def check_same_layers(path: Path, kinds: Sequence[Hashable]) -> list[str]:
    """Compare each layer of a written graph with the first of its kind.

    Args:
        path: the ONNX file; its external data is not read.
        kinds: of the layers; equal ones differ in weights alone.

    Returns:
        One line for each kind that has several layers.

    Raises:
        ExportError: names the layer that computes something else, and its first such node.
    """
    graph = read_onnx(path).graph
    parts = graph_parts(graph, len(kinds))
    numbers = _Numbers(graph)
    numbers.share(parts.get(SHARED, []))
    values = [numbers.of_layer(index, parts.get(index, [])) for index in range(len(kinds))]
    outputs = {value.name for value in graph.output}
    results = [_results(index, found, outputs) for index, found in enumerate(values)]
    lines = []
    for kind in dict.fromkeys(kinds):
        first, *others = (index for index, one in enumerate(kinds) if one == kind)
        for other in others:
            if results[other] != results[first]:
                known = set(values[first].values())
                raise ExportError(
                    f"{path.name}: layer {other} is not layer {first} over weights of its own: "
                    f"{_first_other(parts.get(other, []), values[other], known)}",
                    hint="the exported graph is wrong: a defect of draftrt, please report it",
                )
        if others:
            lines.append(
                f"layer {first} stands for {len(others)} more, the same over weights of their own"
            )
    return lines


def _results(layer: int, values: Mapping[str, int], outputs: set[str]) -> dict[str, int]:
    """Return the numbers of what a layer gives to others, by names without its own number."""
    found = {}
    for name, number in values.items():
        match = CACHE.match(name)
        if name == state_name(layer):
            found["state"] = number
        elif name in outputs:
            found[match[1] if match and int(match[2]) == layer else name] = number
    return found


def _first_other(nodes: Iterable[Any], values: Mapping[str, int], known: set[int]) -> str:
    """Return the first of a layer's nodes that the layer it is compared with has not."""
    for node in nodes:
        if any(values[name] not in known for name in node.output if name):
            return f"{node.op_type} {node.name} is another"
    return "nodes are missing"


class _Numbers:
    """The numbers of a graph's expressions."""

    def __init__(self, graph: Any) -> None:
        self._initialisers = {tensor.name: tensor for tensor in graph.initializer}
        self._inputs = {value.name: value.type.SerializeToString() for value in graph.input}
        self._numbers: dict[Hashable, int] = {}
        self._shared: dict[str, int] = {}

    def share(self, nodes: Iterable[Any]) -> None:
        """Number the values that belong to no layer."""
        self._shared = self._values(nodes, SHARED)

    def of_layer(self, layer: int, nodes: Iterable[Any]) -> dict[str, int]:
        """Return the number of each value that a layer's nodes make."""
        return self._values(nodes, layer)

    def _values(self, nodes: Iterable[Any], layer: int) -> dict[str, int]:
        values: dict[str, int] = {}
        for node in nodes:
            operands = tuple(
                values[name] if name in values else self._operand(name, layer, node)
                for name in node.input
            )
            attributes = tuple(sorted(one.SerializeToString() for one in node.attribute))
            made = self._number((node.op_type, node.domain, attributes, operands))
            for index, name in enumerate(node.output):
                values[name] = self._number(("output", index, made))
        return values

    def _operand(self, name: str, layer: int, node: Any) -> int:
        """Return the number of a value that no node of the same part makes."""
        weight, cache = WEIGHT.match(name), CACHE.match(name)
        if layer != SHARED and name == state_name(layer - 1):
            return self._number("the state before")
        if name in self._shared:
            return self._shared[name]
        if name in self._initialisers:
            tensor = self._initialisers[name]
            if weight is not None:
                is_own = int(weight[2]) == layer
                called = (is_own, weight[1], name[weight.end() :] if is_own else name)
                return self._number(("weight", called, tensor.data_type, tuple(tensor.dims)))
            return self._number(("constant", name if tensor.external_data else _content(tensor)))
        if name in self._inputs and cache is not None:
            if node.op_type == "Shape":  # a number of rows, whichever layer's cache is asked
                return self._number(("size of a cache", self._inputs[name]))
            if int(cache[2]) == layer:
                return self._number(("own cache", cache[1], self._inputs[name]))
        return self._number(("value", name))

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def _content(tensor: Any) -> bytes:
    """Return type, shape and content of a small initialiser."""
    import onnx

    unnamed = onnx.TensorProto()
    unnamed.CopyFrom(tensor)
    unnamed.name = ""
    content: bytes = unnamed.SerializeToString()
    return content
