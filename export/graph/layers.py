"""A graph with a few layers to the same graph with all of them.

Layers of one kind are the same nodes over other weights. Tracing costs about a second a layer, so
one of each kind is traced, and the last one; the others are written from those. Every value of a
layer is named after it (``layers.7.linear_3``), its result ``layers.7.output``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftrt.dtypes import BY_NAME
from draftrt.errors import ExportError
from draftrt.export.weights.tensors import WEIGHT
from draftrt.signature import Signature

CACHE = re.compile(r"^((?:past|present)_[a-z]+_)(\d+)$")
SHARED = -1  # level of what no layer alone owns: ids, positions, masks, the fused context
EMBEDDING = "embedding.output"
FEATURES = "features."


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Which layers of a model are traced, and which of those each layer is written from.

    Attributes:
        traced: layers of the model that are traced, ascending; the last layer is among them.
        source: for each layer of the model, its place in ``traced``.
    """

    traced: tuple[int, ...]
    source: tuple[int, ...]

    def name_in_model(self, name: str) -> str:
        """Return a traced weight's name in the model: ``layers.1.x`` of 2 traced, 36 in all."""
        return WEIGHT.sub(lambda match: f"{match[1]}{self.traced[int(match[2])]}.", name)


def plan_layers(kinds: Sequence[Hashable]) -> LayerPlan:
    """Return the plan for layers of the given kinds; equal kinds differ in weights only."""
    last = len(kinds) - 1
    first: dict[Hashable, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(kind, index)
    traced = tuple(sorted({*first.values(), last}))
    source = [traced.index(first[kind]) for kind in kinds[:last]]
    return LayerPlan(traced, (*source, len(traced) - 1))


def state_name(layer: int) -> str:
    """Return the name of the residual stream behind a layer; -1 is the one before the first."""
    return EMBEDDING if layer < 0 else f"layers.{layer}.output"


def state_names(count: int) -> tuple[str, ...]:
    """Return the names of the residual streams before, between and after ``count`` layers."""
    return tuple(state_name(layer) for layer in range(-1, count))


def write_layers(
    model: Any, plan: LayerPlan, signature: Signature, features: Sequence[str] = ()
) -> Any:
    """Return the graph of the whole model.

    Args:
        model: ``onnx.ModelProto`` of the traced layers; its outputs are those of the traced
            module, then `state_names`. Weights are named and not there.
        plan: what was traced.
        signature: inputs and outputs of the whole model.
        features: values that are concatenated into the output ``features``, for a target.

    Raises:
        ExportError: a layer uses a value that lies inside another one.
    """
    import onnx

    graph = model.graph
    parts = graph_parts(graph, len(plan.traced))
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for field in ("node", "value_info", "input", "output"):
        del getattr(whole.graph, field)[:]
    writer = _LayerWriter(graph, whole.graph, plan)
    writer.add(parts.pop(SHARED, []), None)
    head = parts.pop(len(plan.traced), [])
    for layer in range(len(plan.source)):
        writer.add(parts[plan.source[layer]], layer)
    writer.add(head, None)
    if features:
        _join(whole.graph, features)
    _add_interface(whole.graph, signature)
    return whole


def _join(graph: Any, features: Sequence[str]) -> None:
    """Add the output ``features`` [1, R, m * H]."""
    import onnx

    joined, axis, name = f"{FEATURES}joined", f"{FEATURES}axis", FEATURES.rstrip(".")
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], np.int64), axis))
    graph.node.extend(
        [
            onnx.helper.make_node("Concat", list(features), [joined], f"{FEATURES}concat", axis=-1),
            onnx.helper.make_node("Unsqueeze", [joined, axis], [name], f"{FEATURES}batch"),
        ]
    )


def graph_parts(graph: Any, count: int) -> dict[int, list[Any]]:
    """Return the nodes of each level: shared ones, each layer's, and those behind the last.

    The nodes of a target's features, which join the results of several layers, are left out.
    """
    level: dict[str, int] = {}
    inputs = {value.name for value in graph.input}
    for node in graph.node:
        for name in node.input:
            match = WEIGHT.match(name) or CACHE.match(name)
            if match and name not in level:
                level[name] = int(match[2])
    parts: dict[int, list[Any]] = {}
    for node in graph.node:
        if node.name.startswith(FEATURES):
            continue
        below = {level.get(name, SHARED) for name in node.input if name}
        # A symbolic size is one number, whichever layer's cache it is read from.
        is_size = node.op_type == "Shape" and node.input[0] in inputs
        own = SHARED if is_size else max(below, default=SHARED)
        inside = sorted(below - {SHARED, own})
        if inside and not is_size:
            raise ExportError(
                f"{node.name}: a node of layer {own} uses values inside layers {inside}",
                hint="a defect of draftrt or of the installed torch, please report it",
            )
        parts.setdefault(own, []).append(node)
        for name in node.output:
            level[name] = own
        for index in range(-1, count):  # whatever is made of a state belongs to the layer behind it
            if state_name(index) in node.output:
                level[state_name(index)] = index + 1
    return parts


class _LayerWriter:
    """Copies nodes into a graph, a layer's under names of their own."""

    def __init__(self, source: Any, out: Any, plan: LayerPlan) -> None:
        self._out = out
        self._plan = plan
        self._info = {value.name: value for value in source.value_info}
        for value in source.output:
            self._info[value.name] = value
        self._last = len(plan.traced) - 1

    def add(self, nodes: Iterable[Any], layer: int | None) -> None:
        """Copy the nodes of one layer, or with None nodes that belong to no layer."""
        made = {name for node in nodes for name in node.output if name}
        names = {name: self._name(name, layer, made) for node in nodes for name in node.input}
        names |= {name: self._name(name, layer, made) for name in made}
        for node in nodes:
            copy = self._out.node.add()
            copy.CopyFrom(node)
            del copy.metadata_props[:]
            copy.doc_string = ""
            copy.name = node.name if layer is None else f"layers.{layer}.{node.name}"
            for kind in (copy.input, copy.output):
                kind[:] = [names.get(name, name) for name in kind]
            self._add_info(node.output, names)

    def _add_info(self, outputs: Iterable[str], names: Mapping[str, str]) -> None:
        for name in outputs:
            if name in self._info and not CACHE.match(name):
                value = self._out.value_info.add()
                value.CopyFrom(self._info[name])
                value.name = names.get(name, name)
                del value.metadata_props[:]

    def _name(self, name: str, layer: int | None, made: set[str]) -> str:
        """Return a value's name in the whole model."""
        if layer is None:  # the nodes behind the last layer read its result
            last, cache = len(self._plan.source) - 1, CACHE.match(name)
            if cache:  # a size that is read from some layer's cache
                return f"{cache[1]}{self._plan.traced[int(cache[2])]}"
            return state_name(last) if name == state_name(self._last) else name
        place = self._plan.source[layer]
        if name == state_name(place):
            return state_name(layer)
        if layer and name == state_name(place - 1):
            return state_name(layer - 1)
        for pattern, end in ((WEIGHT, "."), (CACHE, "")):
            match = pattern.match(name)
            if match:
                return f"{match[1]}{layer}{end}{name[match.end() :]}"
        return f"layers.{layer}.{name}" if name in made else name


def _add_interface(graph: Any, signature: Signature) -> None:
    import onnx

    internal = list(graph.value_info)
    outputs = set(signature.output_names())
    del graph.value_info[:]
    graph.value_info.extend(value for value in internal if value.name not in outputs)
    for field, tensors in ((graph.input, signature.inputs), (graph.output, signature.outputs)):
        for tensor in tensors:
            field.append(
                onnx.helper.make_tensor_value_info(
                    tensor.name, BY_NAME[tensor.dtype].onnx, list(tensor.shape)
                )
            )
