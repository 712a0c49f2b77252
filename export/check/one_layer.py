"""A written graph with one of its layers left, to be computed in little memory.

The shared nodes, one layer and the head, over the written file's own weights where they lie. Of the
tables over the vocabulary only a block of rows is computed with, and of a table to look up in only
the rows that are found.

A graph's 16-bit products a block of a weight's rows at a time, for ONNX Runtime's CPU kernels.

Those multiply in float32 alone, so each 16-bit weight is widened first. A block of it stays in a
processor's cache; a whole one is written to fresh memory and read back, at three times the cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.export.check.extent import Rows, product_blocks
from draftrt.export.graph.edit import attributes_of, place_of, put_place
from draftrt.export.graph.files import read_initialisers
from draftrt.export.graph.float32 import widen_attributes
from draftrt.export.graph.layers import HEAD, SHARED, graph_parts
from draftrt.export.graph.quantize import look_up_rows
from draftrt.export.tracing.names import CACHE, state_name
from draftrt.export.tracing.trace import used_nodes
from draftrt.export.weights.quantized import QuantizedRef, packed
from draftrt.export.weights.tensors import CODES, SCALES
from draftrt.onnx_session import read_onnx
from draftrt.signature import FEATURES, PAST

GROWING = tuple(f"{PAST}{part}_" for part in ("key", "value"))  # caches with a row a token


def write_one_layer(
    source: Path, path: Path, *, layer: int, prefix: str, rows: Rows, tables: Collection[str]
) -> None:
    """Write the graph of one layer of a file.

    A bfloat16 graph becomes one in float32 that widens each weight when it needs it: ONNX Runtime's
    CPU kernels know no bfloat16 products. The layer's result is a further output, the last one. The
    number of cache rows is left open.

    Args:
        source: written ONNX file of all layers, not opened for its weights.
        path: file to write; it names the data files of ``source`` as that does.
        layer: the layer that is left.
        prefix: of the model's weights.
        rows: rows of each of ``tables`` to compute with.
        tables: weights over the vocabulary; a use of one as a table to look up stays whole.
    """
    import onnx

    model = read_onnx(source)
    graph = model.graph
    look_up_rows(graph)
    parts = graph_parts(graph)
    body = [*parts.get(SHARED, []), *parts[layer], *parts.get(HEAD, [])]
    before, state, last = (state_name(at, prefix) for at in (layer - 1, layer, max(parts)))
    renamed = {before: state_name(-1, prefix), last: state}
    nodes = []
    for node in body:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, _own_cache(name, layer)) for name in node.input]
        nodes.append(copy)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    _cut_tables(nodes, weights, rows, tables)
    _cut_quantised(nodes, weights, rows, tables, source)
    inputs, outputs = _values(graph, layer, state)
    nodes = used_nodes(nodes, {value.name for value in outputs})  # no masks of other kinds
    nodes = widen(split_products(nodes, weights), weights)
    used = {name for node in nodes for name in node.input}
    small = onnx.helper.make_graph(
        nodes, "one layer", inputs, outputs, [weights[name] for name in weights if name in used]
    )
    made = onnx.helper.make_model(small, opset_imports=model.opset_import)
    made.ir_version = model.ir_version
    onnx.save(made, str(path))


def _values(graph: Any, layer: int, state: str) -> tuple[list[Any], list[Any]]:
    """Return the inputs of one layer's graph and its outputs, the layer's result the last."""
    import onnx

    inputs = [value for value in graph.input if _belongs(value.name, layer)]
    outputs = [value for value in graph.output if _belongs(value.name, layer)]
    outputs = [value for value in outputs if value.name != FEATURES]
    for value in (*inputs, *outputs):
        kind = value.type.tensor_type
        if kind.elem_type == onnx.TensorProto.BFLOAT16:
            kind.elem_type = onnx.TensorProto.FLOAT
    for value in inputs:
        if value.name == "noise" or value.name.startswith(GROWING):
            value.type.tensor_type.shape.dim[2].Clear()
    for value in outputs:
        value.type.tensor_type.ClearField("shape")
    result = onnx.helper.make_tensor_value_info(state, onnx.TensorProto.FLOAT, None)
    return inputs, [*outputs, result]


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
        block = cut_rows(weights, name, rows)
        for node in nodes:
            if node.op_type != "Gather" or name == "d2t":
                node.input[:] = [block if given == name else given for given in node.input]


def _cut_quantised(
    nodes: list[Any], weights: dict[str, Any], rows: Rows, tables: Collection[str], source: Path
) -> None:
    """Let products with a quantised table dequantise the block of its output channels."""
    for name in tables:
        if name + CODES not in weights:
            continue
        ref = read_initialisers(source)[name]
        assert isinstance(ref, QuantizedRef)
        if not ref.is_product or len(rows) == ref.shape[0]:
            continue
        codes = packed(ref.codes(rows.start, rows.stop).T.contiguous(), ref.scheme)
        scales = ref.channel_scales(rows.start, rows.stop)
        scales = (scales.T if scales.ndim == 2 else scales).contiguous()
        parts = {CODES: codes, SCALES: _raw(scales)}
        if (base := ref.channel_base(rows.start, rows.stop)) is not None:
            parts[f".{ref.base_kind.value}"] = _raw(base.T.contiguous())
        for ending, content in parts.items():
            _replace(nodes, weights, name + ending, content, len(rows))


def _raw(content: torch.Tensor) -> bytes:
    return bytes(content.view(torch.uint8).numpy().tobytes())


def _replace(
    nodes: list[Any], weights: dict[str, Any], name: str, content: bytes, count: int
) -> None:
    """Let nodes use an initialiser like one that is there, of ``count`` along its last axis."""
    import onnx

    whole = weights[name]
    block = onnx.helper.make_tensor(
        f"{name}.rows", whole.data_type, [*whole.dims[:-1], count], content, raw=True
    )
    weights[block.name] = block
    for node in nodes:
        node.input[:] = [block.name if given == name else given for given in node.input]


def feature_sources(path: Path) -> Mapping[str, list[str]]:
    """Return what each concatenation of states in a written graph is made of, in order."""
    graph = read_onnx(path).graph
    return {
        node.output[0]: list(node.input) for node in graph.node if node.name == "features.concat"
    }


def split_products(nodes: list[Any], weights: dict[str, Any]) -> list[Any]:
    """Return the nodes with each product by a large 16-bit weight as products by blocks of it.

    Args:
        nodes: of a graph.
        weights: its initialisers by name; those of the blocks are added, each the place of some
            rows of the weight.
    """
    import onnx

    made = []
    for node in nodes:
        blocks = _blocks(node, weights)
        parts = []
        for block in blocks:
            part = onnx.NodeProto()
            part.CopyFrom(node)
            for place in range(1, len(node.input)):  # weight and bias
                part.input[place] = cut_rows(weights, node.input[place], block)
            part.name, part.output[0] = f"{node.name}.{block}", f"{node.output[0]}.{block}"
            parts.append(part)
        made += parts or [node]
        if parts:
            outputs = [part.output[0] for part in parts]
            made.append(onnx.helper.make_node("Concat", outputs, list(node.output), axis=1))
    return made


def _blocks(node: Any, weights: dict[str, Any]) -> list[Rows]:
    """Return the blocks of a product's weight; none where it is to be left as it is."""
    from onnx import TensorProto

    if node.op_type != "Gemm" or any(name not in weights for name in node.input[1:]):
        return []
    weight = weights[node.input[1]]
    is_by_rows = attributes_of(node).get("transB") == 1
    if not is_by_rows or weight.data_type not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return []
    blocks = product_blocks(*weight.dims)
    return blocks if len(blocks) > 1 else []


def cut_rows(weights: dict[str, Any], name: str, rows: Rows) -> str:
    """Return the name of some rows of a weight, which are added to the weights."""
    import onnx

    made = onnx.TensorProto()
    made.CopyFrom(weights[name])
    made.name = f"{name}.{rows}"
    if place := place_of(made):
        width = int(place["length"]) // made.dims[0]
        offset = int(place["offset"]) + rows.start * width
        put_place(made, place | {"offset": str(offset), "length": str(len(rows) * width)})
        made.dims[0] = len(rows)
    else:
        array = onnx.numpy_helper.to_array(made)[rows.start : rows.stop]
        made = onnx.numpy_helper.from_array(array, made.name)
    weights[made.name] = made
    return str(made.name)


def widen(nodes: list[Any], weights: dict[str, Any]) -> list[Any]:
    """Return the nodes with bfloat16 as float32; each large weight is widened right before use.

    Args:
        nodes: of a graph, changed.
        weights: its initialisers by name; small ones are widened there.
    """
    import onnx

    brain, full = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    made: list[Any] = []
    for node in nodes:
        widen_attributes(node)
        is_lookup = False
        for place, name in enumerate(node.input):
            tensor = weights.get(name)
            if tensor is None or tensor.data_type != brain:
                continue
            if not tensor.external_data:
                wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
                weights[name] = onnx.numpy_helper.from_array(wide, name)
            elif node.op_type == "Gather":
                is_lookup = True
            else:
                node.input[place] = f"{name}.{len(made)}.wide"
                made.append(onnx.helper.make_node("Cast", [name], [node.input[place]], to=full))
        made.append(node)
        if is_lookup:
            output = node.output[0]
            node.output[0] = f"{output}.narrow"
            made.append(onnx.helper.make_node("Cast", [node.output[0]], [output], to=full))
    return made
