"""A traced graph rewritten to multiply with, and look up in, quantised weights: standard Q/DQ.

A product becomes ``Gemm(x, DequantizeLinear(codes [in, out], scales))``: ONNX Runtime fuses that
form into one kernel that reads the codes, and TensorRT-RTX builds it. With codes [out, in] ONNX
Runtime dequantises the whole weight in every call, and so it does with a MatMul whose output is
added to something, because it makes another Gemm of the two first. Each use gets codes of its own,
because two products of one quantised weight crash TensorRT's builder. Where a checkpoint's inputs
are not in the order of its groups, the codes are sorted by them and a Gather sorts x.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.errors import ExportError
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.edit import attributes_of, edited, makers, replace_nodes
from draftrt.export.weights.tensors import CODES, ORDER, SCALES, QuantizedUse
from draftrt.quantization import HEAD, TABLES, Part, Quantization, part_of


def quantize_graph(
    graph: Any, tensors: Mapping[str, GraphTensor], quantization: Quantization
) -> list[QuantizedUse]:
    """Rewrite every product and lookup that a quantised part names.

    The codes and scales are called by name; their initialisers are not there yet.

    Args:
        graph: ``onnx.GraphProto`` whose nodes call weights by name.
        tensors: content of every weight.
        quantization: part to scheme.

    Raises:
        ExportError: a quantised weight feeds two products, or one of a form that draftrt does not
            write.
    """
    found = dict[str, QuantizedUse]()
    nodes: list[Any] = []
    for node in graph.node:
        use = _use_of(node, tensors, quantization)
        if use is None:
            nodes.append(node)
            continue
        if use.name in found:
            raise ExportError(f"{use.name}: a quantised weight feeds two products, expected one")
        found[use.name] = use
        nodes += _product(node, use) if use.is_product else _lookup(node, use)
    replace_nodes(graph, nodes)
    return list(found.values())


def _use_of(
    node: Any, tensors: Mapping[str, GraphTensor], quantization: Quantization
) -> QuantizedUse | None:
    for index, name in enumerate(node.input):
        if name not in tensors:
            continue
        kept = tensors[name].kept
        if kept is not None and node.op_type == "Gemm" and index == 1:
            return QuantizedUse(name, tensors[name], kept.scheme, is_product=True)
        part = part_of(name, is_product=node.op_type == "Gemm" and index == 1)
        if part is not None and part in quantization:
            return QuantizedUse(
                HEAD if part is Part.HEAD else name,
                tensors[name],
                quantization[part],
                is_product=part is not Part.EMBEDDING,
            )
    return None


def _product(node: Any, use: QuantizedUse) -> list[Any]:
    """``Gemm(x, W [out, in], bias, transB=1)`` to a product with dequantised [in, out]."""
    import onnx

    attributes = attributes_of(node)
    if attributes.pop("transB", 0) != 1 or any(value != 1 for value in attributes.values()):
        raise ExportError(
            f"{node.name}: Gemm with {attributes}, expected transB alone",
            hint="a defect of draftrt, please report it",
        )
    how: dict[str, Any] = {"axis": 1} if use.block is None else {"axis": 0, "block_size": use.block}
    wide, inputs = f"{use.name}.dequantized", list(node.input)
    gathered = []
    if use.tensor.kept is not None and use.tensor.kept.is_ordered:
        given, inputs[0] = inputs[0], f"{use.name}.gathered"
        gathered = [
            onnx.helper.make_node(
                "Gather", [given, use.name + ORDER], [inputs[0]], f"{use.name}.gather", axis=1
            )
        ]
    return [
        *gathered,
        onnx.helper.make_node(
            "DequantizeLinear",
            [use.name + CODES, use.name + SCALES],
            [wide],
            name=f"{use.name}.dequantize",
            **how,
        ),
        onnx.helper.make_node(
            "Gemm", [inputs[0], wide, *inputs[2:]], list(node.output), f"{use.name}.product"
        ),
    ]


def _lookup(node: Any, use: QuantizedUse) -> list[Any]:
    """``Gather(table, ids)`` to one of a dequantised table, as TensorRT takes it."""
    import onnx

    attributes = attributes_of(node)
    if node.op_type != "Gather" or attributes.get("axis", 0) != 0:
        raise ExportError(
            f"{node.name}: {node.op_type} of an embedding, expected Gather of its rows",
            hint="a defect of draftrt, please report it",
        )
    wide = f"{use.name}.dequantized"
    return [
        onnx.helper.make_node(
            "DequantizeLinear",
            [use.name + CODES, use.name + SCALES],
            [wide],
            f"{use.name}.dequantize",
            axis=0,
        ),
        onnx.helper.make_node(
            "Gather", [wide, node.input[1]], list(node.output), f"{use.name}.gather"
        ),
    ]


def look_up_codes(path: Path) -> None:
    """Rewrite the lookups of an ONNX file as `look_up_rows` does."""
    with edited(path) as model:
        look_up_rows(model.graph)


def look_up_rows(graph: Any) -> None:
    """Let lookups of a graph dequantise the rows they find and not whole tables.

    That is the form for ONNX Runtime, which would dequantise the table in every call. TensorRT has
    no lookup in integers; it keeps the codes in the plan and dequantises as it reads.
    """
    import onnx

    made = makers(graph)
    nodes = []
    for node in graph.node:
        if node.name.endswith(".dequantize") and node.name.removesuffix(".dequantize") in TABLES:
            continue
        wide = made.get(node.input[0]) if node.op_type == "Gather" else None
        if wide is None or wide.op_type != "DequantizeLinear":
            nodes.append(node)
            continue
        found = [f"{name}.rows" for name in wide.input]
        nodes += [
            onnx.helper.make_node("Gather", [name, node.input[1]], [rows], name=f"{rows}.gather")
            for name, rows in zip(wide.input, found, strict=True)
        ]
        nodes.append(
            onnx.helper.make_node("DequantizeLinear", found, node.output, name=wide.name, axis=0)
        )
    replace_nodes(graph, nodes)
