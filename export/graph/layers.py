"""A graph with a few layers to the same graph with all of them.

Layers of one kind are the same nodes over other weights. Tracing all of them takes time and memory,
so one of each kind is traced, and the last one; the others are written from those. Nodes and values
of a layer are named after it (``layers.7.self_attn.q_proj``), its result ``layers.7.output``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftrt.dtypes import BY_NAME
from draftrt.errors import ExportError
from draftrt.export.tracing.names import CACHE, EMBEDDING, LAYER, OUTPUT, state_name
from draftrt.signature import Signature

SHARED = -1  # owner of what no layer alone owns: ids, positions, masks, the fused context
HEAD = -2  # of what comes behind the last layer
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
        return LAYER.sub(lambda match: f"{match[1]}{self.traced[int(match[2])]}.", name)


def plan_layers(kinds: Sequence[Hashable]) -> LayerPlan:
    """Return the plan for layers of the given kinds; equal kinds differ in weights only."""
    last = len(kinds) - 1
    first: dict[Hashable, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(kind, index)
    traced = tuple(sorted({*first.values(), last}))
    source = [traced.index(first[kind]) for kind in kinds[:last]]
    return LayerPlan(traced, (*source, len(traced) - 1))


def write_layers(
    model: Any, plan: LayerPlan, signature: Signature, features: Sequence[str] = ()
) -> Any:
    """Return the graph of the whole model.

    Args:
        model: ``onnx.ModelProto`` of the traced layers. Weights are named and not there.
        plan: what was traced.
        signature: inputs and outputs of the whole model.
        features: values that are concatenated into the output ``features``, for a target.

    Raises:
        ExportError: a layer uses a value that lies inside another one, or what goes into the first
            is not named `EMBEDDING`, by which other layers of its kind find their own.
    """
    import onnx

    graph = model.graph
    parts = graph_parts(graph)
    _check_first(parts[0])
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for field in ("node", "value_info", "input", "output"):
        del getattr(whole.graph, field)[:]
    writer = _LayerWriter(graph, whole.graph)
    writer.add(parts.get(SHARED, []), dict(enumerate(plan.traced)))
    for layer, source in enumerate(plan.source):
        writer.add(parts[source], {source: layer, source - 1: layer - 1})
    writer.add(parts.get(HEAD, []), dict(enumerate(plan.traced)))
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


def graph_parts(graph: Any) -> dict[int, list[Any]]:
    """Return the nodes of each layer, by their names; shared ones, and those behind the last layer.

    The nodes of a target's features, which join the results of several layers, are left out.
    """
    nodes = [node for node in graph.node if not node.name.startswith(FEATURES)]
    owners = [int(match[2]) if (match := LAYER.match(node.name)) else SHARED for node in nodes]
    last = max((at for at, owner in enumerate(owners) if owner != SHARED), default=-1)
    owners[last + 1 :] = [HEAD] * (len(owners) - last - 1)
    parts: dict[int, list[Any]] = {}
    for node, owner in zip(nodes, owners, strict=True):
        _check_inputs(node, owner, before=max(owners) if owner == HEAD else owner - 1)
        parts.setdefault(owner, []).append(node)
    return parts


def _check_first(nodes: Sequence[Any]) -> None:
    """Refuse a first layer whose input has another name: copies of the layer would read it too."""
    if not any(name.endswith(EMBEDDING) for node in nodes for name in node.input):
        raise ExportError(
            f"layer 0 reads no value named {EMBEDDING}",
            hint="a defect of draftrt, please report it",
        )


def _check_inputs(node: Any, owner: int, before: int) -> None:
    """Refuse a node that reads more of other layers than the result of the one before.

    A size is one number, whichever layer's cache it is read from.
    """
    for name in node.input if node.op_type != "Shape" else ():
        match = LAYER.match(name) or CACHE.match(name)
        if match is None or int(match[2]) == owner:
            continue
        if int(match[2]) != before or not name.endswith(f".{before}.{OUTPUT}"):
            whose = f"a node of layer {owner}" if owner >= 0 else "a node of no layer"
            raise ExportError(
                f"{node.name}: {whose} uses values inside layers [{match[2]}]: {name}",
                hint="a defect of draftrt or of the installed torch, please report it",
            )


class _LayerWriter:
    """Copies nodes into a graph, under the numbers of the whole model's layers."""

    def __init__(self, source: Any, out: Any) -> None:
        self._out = out
        self._info = {value.name: value for value in (*source.value_info, *source.output)}

    def add(self, nodes: Iterable[Any], numbers: Mapping[int, int]) -> None:
        """Copy nodes.

        Args:
            nodes: of the traced model.
            numbers: number of a traced layer to that of the layer which is written.
        """
        for node in nodes:
            copy = self._out.node.add()
            copy.CopyFrom(node)
            copy.name = _renumbered(node.name, numbers)
            for kind in (copy.input, copy.output):
                kind[:] = [_renumbered(name, numbers) for name in kind]
            for name in node.output:
                if name in self._info and not CACHE.match(name):
                    value = self._out.value_info.add()
                    value.CopyFrom(self._info[name])
                    value.name = _renumbered(name, numbers)


def _renumbered(name: str, numbers: Mapping[int, int]) -> str:
    if name.endswith(EMBEDDING) and numbers.get(-1, -1) >= 0:
        return state_name(numbers[-1], name.removesuffix(EMBEDDING))
    match = LAYER.match(name) or CACHE.match(name)
    if match is None:
        return name
    first, last = match.span(2)
    return f"{name[:first]}{numbers.get(int(match[2]), match[2])}{name[last:]}"


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
