"""Proof on a written file that its layers of a kind are one computation over their own weights.

A layer's nodes, values, weights and caches carry its number in their names, and the result of the
layer before goes into it. Two layers are one computation when without the numbers they are the same
nodes: operator, attributes, and the names of what each reads and makes. What weights and caches are
held in is compared as well, so that a name stands for the same on both sides.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftrt.errors import ExportError
from draftrt.export.graph.layers import graph_parts
from draftrt.export.tracing.names import CACHE, EMBEDDING, LAYER, OUTPUT
from draftrt.onnx_session import read_onnx

STATE = "the state before"


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
    parts, held = graph_parts(graph), _held(graph)
    layers = [_without_number(parts.get(at, []), at, held) for at in range(len(kinds))]
    lines = []
    for kind in dict.fromkeys(kinds):
        first, *others = (index for index, one in enumerate(kinds) if one == kind)
        for other in others:
            if layers[other] != layers[first]:
                raise ExportError(
                    f"{path.name}: layer {other} is not layer {first} over weights of its own: "
                    f"{_first_other(parts.get(other, []), layers[other], layers[first])}",
                    hint="the exported graph is wrong: a defect of draftrt, please report it",
                )
        if others:
            lines.append(
                f"layer {first} stands for {len(others)} more, the same over weights of their own"
            )
    return lines


Layer = Mapping[str, Hashable]  # what a node makes to the node


def _without_number(nodes: Sequence[Any], layer: int, held: Mapping[str, str]) -> Layer:
    """Return a layer's nodes, the same for two layers that are one computation."""

    def called(name: str) -> Hashable:
        match = LAYER.match(name) or CACHE.match(name)
        if name.endswith(EMBEDDING) if layer == 0 else name.endswith(f".{layer - 1}.{OUTPUT}"):
            return STATE
        if match is None or int(match[2]) != layer:
            return name
        return f"{match[1]}#{name[match.end(2) :]}", held.get(name)

    return {
        str(called(node.output[0])): (
            node.op_type,
            node.domain,
            tuple(sorted(one.SerializeToString() for one in node.attribute)),
            tuple(called(name) for name in node.input),
            tuple(called(name) for name in node.output),
        )
        for node in nodes
    }


def _held(graph: Any) -> dict[str, str]:
    """Return the element type and shape of every weight and input."""
    weights = {one.name: f"{one.data_type} {list(one.dims)}" for one in graph.initializer}
    return weights | {one.name: str(one.type) for one in graph.input}


def _first_other(nodes: Sequence[Any], own: Layer, first: Layer) -> str:
    """Return the first of a layer's nodes that the layer it is compared with has not."""
    for node, (made, what) in zip(nodes, own.items(), strict=False):
        if first.get(made) != what:
            return f"{node.op_type} {node.name} is another"
    return "nodes are missing"
