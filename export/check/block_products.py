"""A graph's 16-bit products a block of a weight's rows at a time, for ONNX Runtime's CPU kernels.

Those multiply in float32 alone, so each 16-bit weight is widened first. A block of it stays in a
processor's cache; a whole one is written to fresh memory and read back, at three times the cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftrt.export.check.extent import Rows, product_blocks
from draftrt.export.graph.float32 import widen_attributes


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
    is_by_rows = any(one.name == "transB" and one.i == 1 for one in node.attribute)
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
    place = {entry.key: entry for entry in made.external_data}
    if place:
        width = int(place["length"].value) // made.dims[0]
        place["offset"].value = str(int(place["offset"].value) + rows.start * width)
        place["length"].value = str(len(rows) * width)
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
