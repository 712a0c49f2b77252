"""A written graph with one of its layers left, to be computed in little memory.

The shared nodes, one layer and the head, over the written file's own weights where they lie. Of the
tables over the vocabulary only a block of rows is computed with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftrt.export.layers import CACHE, EMBEDDING, SHARED, graph_parts, state_name


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of rows, ``start`` to ``stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}..{self.stop - 1}"


def write_one_layer(
    source: Path, path: Path, *, layer: int, num_layers: int, rows: Rows, tables: Collection[str]
) -> None:
    """Write the graph of one layer beside the file it is made from.

    A bfloat16 graph becomes one in float32 that widens each weight when it needs it: ONNX Runtime's
    CPU kernels know no bfloat16 products.

    Args:
        source: written ONNX file of all layers, not opened for its weights.
        path: file to write; it shares the data files, so it lies in the same folder.
        layer: the layer that is left.
        num_layers: layers of ``source``.
        rows: rows of each of ``tables`` to compute with.
        tables: weights over the vocabulary; a use of one as a table to look up stays whole.
    """
    import onnx

    model = onnx.load(str(source), load_external_data=False)
    graph = model.graph
    parts = graph_parts(graph, num_layers)
    body = [*parts.get(SHARED, []), *parts[layer], *parts.get(num_layers, [])]
    renamed = {state_name(layer - 1): EMBEDDING, state_name(num_layers - 1): state_name(layer)}
    nodes = []
    for node in body:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, _own_cache(name, layer)) for name in node.input]
        nodes.append(copy)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    _cut_tables(nodes, weights, rows, tables)
    _widen(nodes, weights)
    used = {name for node in nodes for name in node.input}
    inputs = [value for value in graph.input if _belongs(value.name, layer)]
    outputs = [value for value in graph.output if _belongs(value.name, layer)]
    outputs = [value for value in outputs if value.name != "features"]
    for value in (*inputs, *outputs):
        kind = value.type.tensor_type
        if kind.elem_type == onnx.TensorProto.BFLOAT16:
            kind.elem_type = onnx.TensorProto.FLOAT
    for value in outputs:
        value.type.tensor_type.ClearField("shape")
    for value in inputs:
        if value.name == "noise":
            value.type.tensor_type.shape.dim[2].Clear()
    small = onnx.helper.make_graph(
        nodes, "one layer", inputs, outputs, [weights[name] for name in weights if name in used]
    )
    made = onnx.helper.make_model(small, opset_imports=model.opset_import)
    made.ir_version = model.ir_version
    onnx.save(made, str(path))


def _own_cache(name: str, layer: int) -> str:
    """Return a value's name, that of a cache as this layer's: shared nodes ask one for its rows."""
    match = CACHE.match(name)
    return name if match is None else f"{match[1]}{layer}"


def _belongs(name: str, layer: int) -> bool:
    match = CACHE.match(name)
    return match is None or int(match[2]) == layer


def _cut_tables(
    nodes: list[Any], weights: dict[str, Any], rows: Rows, tables: Collection[str]
) -> None:
    """Let products with a table, and lookups of the cut ids, read the block of rows."""
    for name in tables:
        if name not in weights or len(rows) == weights[name].dims[0]:
            continue
        whole, block = weights[name], f"{name}.rows"
        weights[block] = _cut(whole, block, rows)
        for node in nodes:
            if node.op_type != "Gather" or name == "d2t":
                node.input[:] = [block if given == name else given for given in node.input]


def _cut(tensor: Any, name: str, rows: Rows) -> Any:
    import onnx

    made = onnx.TensorProto()
    made.CopyFrom(tensor)
    made.name = name
    made.dims[0] = len(rows)
    place = {entry.key: entry for entry in made.external_data}
    if not place:
        array = onnx.numpy_helper.to_array(tensor)[rows.start : rows.stop]
        return onnx.numpy_helper.from_array(array, name)
    width = int(place["length"].value) // tensor.dims[0]
    place["offset"].value = str(int(place["offset"].value) + rows.start * width)
    place["length"].value = str(len(rows) * width)
    return made


def _widen(nodes: list[Any], weights: dict[str, Any]) -> None:
    """Turn bfloat16 into float32; a large weight is widened by a node, right before its use."""
    import onnx

    brain, full = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    lookups: dict[str, str] = {}
    for node in list(nodes):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == brain:
                attribute.i = full
            if attribute.HasField("t") and attribute.t.data_type == brain:
                wide = onnx.numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(onnx.numpy_helper.from_array(wide))
        for place, name in enumerate(node.input):
            tensor = weights.get(name)
            if tensor is None or tensor.data_type != brain:
                continue
            if not tensor.external_data:
                wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
                weights[name] = onnx.numpy_helper.from_array(wide, name)
            elif node.op_type == "Gather":
                lookups[node.output[0]] = f"{node.output[0]}.narrow"
                node.output[0] = lookups[node.output[0]]
                at = nodes.index(node) + 1
                made = onnx.helper.make_node(
                    "Cast", [node.output[0]], [node.output[0].removesuffix(".narrow")], to=full
                )
                nodes.insert(at, made)
            else:
                wide_name = f"{name}.{nodes.index(node)}.wide"
                made = onnx.helper.make_node("Cast", [name], [wide_name], to=full)
                node.input[place] = wide_name
                nodes.insert(nodes.index(node), made)


def feature_sources(path: Path) -> Mapping[str, list[str]]:
    """Return what each concatenation of states in a written graph is made of, in order."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    return {
        node.output[0]: list(node.input) for node in graph.node if node.name == "features.concat"
    }
