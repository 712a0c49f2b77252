"""Where in an ONNX graph the values are that the PyTorch module shows, and the nodes between them.

Weights keep their checkpoint names in a graph, so the nodes that meet a weight are found by its
name; caches by the graph's outputs; queries and masks by the attention that reads those. Knows
names and operators, not models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftrt.export.graph.edit import makers, readers
from draftrt.export.graph.quantize import whole_product
from draftrt.quantization import Base
from draftrt.signature import PRESENT, cache_names
from draftrt.validate.bisect.module import (
    CHOICE,
    INTO,
    KEYS,
    MASK,
    OUT,
    QUERY,
    VALUES,
    RecordedPlace,
)

MOVES = ("Transpose", "Reshape", "Cast", "Unsqueeze", "Squeeze", "Expand", "Identity", "Flatten")
PRODUCTS = ("Gemm", "MatMul")
CODES = ".codes"  # behind the name of a weight that is stored quantised
BESIDE_CODES = (".scales", ".order", *(f".{base.value}" for base in Base if base))
NORM_DEPTH = 8  # nodes from a norm's input to its scaled form, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a graph.

    Attributes:
        name: its name.
        is_hidden: for a mask, whether true means that a row may not look.
        is_count: for a mask, whether it is the number of rows that may be looked at.
        is_scaled: for queries, whether the attention's scale is in them already.
    """

    name: str
    is_hidden: bool = False
    is_count: bool = False
    is_scaled: bool = False


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
        self._weights = {one.name for one in graph.initializer}
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

    def values(self) -> dict[RecordedPlace, Value]:
        """Return the value of every place that is found in the graph."""
        found: dict[RecordedPlace, Value] = {}
        for name in sorted(self._weights):
            if ("." in name or name == "d2t") and not name.endswith(BESIDE_CODES):
                self._at_weight(name, found)
        layer = 0
        while cache_names(PRESENT, layer)[0] in self.output_names:
            self._at_layer(layer, found)
            layer += 1
        choices = [node for node in self.model.graph.node if node.op_type == "ArgMax"]
        for number, node in enumerate(choices):
            found[RecordedPlace(CHOICE, number, INTO)] = Value(name=node.input[0])
            found[RecordedPlace(CHOICE, number, OUT)] = Value(name=node.output[0])
        for name in self.output_names:
            if not name.startswith(PRESENT):
                found[RecordedPlace(name, 0)] = Value(name=name)
        return found

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
        return sorted(found.values(), key=self._place)

    def reads(self, weight: str) -> bool:
        """Whether any node reads a weight."""
        return weight in self._readers or weight + CODES in self._readers

    def meeting(self, place: RecordedPlace, value: str) -> list[Any]:
        """Return the nodes into which a value goes with a place's weight."""
        weights = {place.name, place.name + CODES}
        return [
            node
            for weight in sorted(weights)
            for node, _ in self._meetings(weight)
            if place.side == INTO and value in node.input
        ]

    def _place(self, node: Any) -> int:
        return self._order[node.output[0]]

    def _at_weight(self, weight: str, found: dict[RecordedPlace, Value]) -> None:
        meetings = sorted(self._meetings(weight), key=lambda item: self._place(item[0]))
        for number, (node, name) in enumerate(meetings):
            into = next((one for one in node.input if one != name), None)
            out = node.output[0]
            if node.op_type in ("Mul", "Div"):  # a norm in parts: scaled here, normed before
                into = self._normed(into) if into else None
            elif node.op_type == "Gather" and name.endswith(CODES):  # rows, still to be scaled
                out = self._first_reader(out, ("DequantizeLinear",))[0].output[0]
            if into is not None:
                place = RecordedPlace(weight.removesuffix(CODES), number, INTO)
                found[place] = Value(name=into)
                found[replace(place, side=OUT)] = Value(name=whole_product(self._readers, out))

    def _meetings(self, weight: str) -> Iterator[tuple[Any, str]]:
        """Yield the nodes that meet a weight, each with the form of the weight that it reads."""
        waiting = [weight]
        while waiting:
            name = waiting.pop()
            for node in self._readers.get(name, []):
                if node.op_type in (*MOVES, "DequantizeLinear") and node.input[0] == name:
                    waiting.append(node.output[0])
                elif node.op_type in (*PRODUCTS, "RMSNormalization", "Gather", "Mul", "Div"):
                    yield node, name

    def _normed(self, value: str) -> str | None:
        """Return the input of a norm in parts, given its normed but unscaled output."""
        node = self._maker.get(value)
        if node is None or node.op_type not in ("Mul", "Div"):
            return None
        for own, other in (tuple(node.input), tuple(node.input)[::-1]):
            if any(name == own for name in self._behind(other, NORM_DEPTH)):
                return str(own)
        return None

    def _behind(self, value: str, depth: int) -> Iterator[str]:
        node = self._maker.get(value)
        for name in () if node is None or not depth else node.input:
            yield name
            yield from self._behind(name, depth - 1)

    def _at_layer(self, layer: int, found: dict[RecordedPlace, Value]) -> None:
        keys, values = cache_names(PRESENT, layer)
        found[RecordedPlace(KEYS, layer)] = Value(name=keys)
        found[RecordedPlace(VALUES, layer)] = Value(name=values)
        node, name = self._first_reader(keys, ("Attention", "MatMul"))
        if node is None:
            return
        query = next(one for one in node.input if one != name)
        found[RecordedPlace(QUERY, layer)] = Value(name=query, is_scaled=node.op_type == "MatMul")
        mask = self._mask_of(node)
        if mask is not None:
            found[RecordedPlace(MASK, layer)] = mask

    def _mask_of(self, node: Any) -> Value | None:
        if node.op_type == "Attention":
            inputs = [*node.input, *[""] * (7 - len(node.input))]
            if inputs[3]:
                return Value(name=inputs[3])
            return Value(name=inputs[6], is_count=True) if inputs[6] else None
        choice, scores = self._first_reader(node.output[0], ("Where",), (*MOVES, "Mul"))
        if choice is None:
            return None
        return Value(name=choice.input[0], is_hidden=choice.input[2] == scores)

    def _first_reader(
        self, value: str, kinds: tuple[str, ...], through: tuple[str, ...] = MOVES
    ) -> tuple[Any, str]:
        """Return the first node of some kind that reads a value, and the form that it reads."""
        waiting = [value]
        while waiting:
            name = waiting.pop(0)
            for node in self._readers.get(name, []):
                if node.op_type in kinds:
                    return node, name
                if node.op_type in through:
                    waiting.append(node.output[0])
        return None, ""
