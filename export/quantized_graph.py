"""A traced graph rewritten to multiply with, and look up in, quantised weights: standard Q/DQ.

A product becomes ``Gemm(x, DequantizeLinear(codes [in, out], scales))``: ONNX Runtime fuses that
form into one kernel that reads the codes, and TensorRT-RTX builds it. With codes [out, in] ONNX
Runtime dequantises the whole weight in every call, and so it does with a MatMul whose output is
added to something, because it makes another Gemm of the two first. Each use gets codes of its own,
because two products of one quantised weight crash TensorRT's builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftrt.errors import ExportError, UnsupportedError
from draftrt.export.assemble import GraphTensor
from draftrt.export.quantize import block_of
from draftrt.quantization import HEAD, TABLES, Part, Quantization, Scheme, part_of

INT4_OPSET = 21  # the first with blocks and 4-bit integers
CODES, SCALES = ".codes", ".scales"  # appended to a weight's name


@dataclass(frozen=True, slots=True)
class QuantizedUse:
    """One quantised weight of a rewritten graph, not yet written.

    Attributes:
        name: of the weight; its initialisers are called ``name + CODES`` and ``name + SCALES``.
        tensor: the weight [out, in], unread.
        scheme: how it is quantised.
        is_product: stored as [in, out], the order a product reads; a table stays [rows, width].
    """

    name: str
    tensor: GraphTensor
    scheme: Scheme
    is_product: bool


def quantize_graph(
    model: Any, tensors: Mapping[str, GraphTensor], quantization: Quantization
) -> list[QuantizedUse]:
    """Rewrite every product and lookup that a quantised part names.

    Weights without a use left lose their initialiser; those of the codes and scales are there
    without content.

    Args:
        model: traced ``onnx_ir.Model``.
        tensors: content of every initialiser that stands for a weight.
        quantization: part to scheme.

    Raises:
        ExportError: a quantised weight feeds two products, or one of a form that draftrt does not
            write.
    """
    graph, found = model.graph, dict[str, QuantizedUse]()
    for name, tensor in tensors.items():
        value = graph.initializers[name]
        for node, index in list(value.uses()):
            part = part_of(name, is_product=node.op_type == "Gemm" and index == 1)
            if part is None or part not in quantization:
                continue
            use = QuantizedUse(
                HEAD if part is Part.HEAD else name,
                tensor,
                quantization[part],
                is_product=part is not Part.EMBEDDING,
            )
            if use.name in found:
                raise ExportError(
                    f"{use.name}: a quantised weight feeds two products, expected one"
                )
            found[use.name] = use
            (_rewrite_product if use.is_product else _rewrite_lookup)(graph, node, value, use)
        if not value.uses():
            del graph.initializers[name]
    return list(found.values())


def _rewrite_product(graph: Any, node: Any, weight: Any, use: QuantizedUse) -> None:
    """``Gemm(x, W [out, in], bias, transB=1)`` to a product with dequantised [in, out]."""
    import onnx_ir

    attributes = {name: one.value for name, one in node.attributes.items()}
    if attributes.pop("transB", 0) != 1 or any(value != 1 for value in attributes.values()):
        raise ExportError(
            f"{node.name}: Gemm with {attributes}, expected transB alone",
            hint="a defect of draftrt or of the installed torch, please report it",
        )
    (out, width), bias = use.tensor.shape, node.inputs[2:]
    shape: tuple[int, ...]
    if use.scheme is Scheme.INT4:
        block = block_of(use.name, width)
        shape, how = (width // block, out), {"axis": 0, "block_size": block}
    else:
        shape, how = (out,), {"axis": 1}
    codes, scales = _initializers(graph, use, (width, out), shape, weight.dtype)
    wide = onnx_ir.node("DequantizeLinear", [codes, scales], how, name=f"{use.name}.dequantize")
    wide.outputs[0].name = f"{use.name}.dequantized"
    product = onnx_ir.node(
        "Gemm", [node.inputs[0], wide.outputs[0], *bias], name=f"{use.name}.product"
    )
    _replace(graph, node, [wide, product])


def _rewrite_lookup(graph: Any, node: Any, table: Any, use: QuantizedUse) -> None:
    """``Gather(table, ids)`` to one of a dequantised table, as TensorRT takes it."""
    import onnx_ir

    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        raise ExportError(
            f"{node.name}: {node.op_type} of an embedding, expected Gather of its rows",
            hint="a defect of draftrt or of the installed torch, please report it",
        )
    codes, scales = _initializers(graph, use, use.tensor.shape, use.tensor.shape[:1], table.dtype)
    wide = onnx_ir.node(
        "DequantizeLinear", [codes, scales], {"axis": 0}, name=f"{use.name}.dequantize"
    )
    wide.outputs[0].name = f"{use.name}.dequantized"
    rows = onnx_ir.node("Gather", [wide.outputs[0], node.inputs[1]], name=f"{use.name}.gather")
    _replace(graph, node, [wide, rows])


def look_up_codes(path: Path) -> None:
    """Rewrite the lookups of an ONNX file to dequantise the rows they find and not whole tables.

    That is the form for ONNX Runtime, which would dequantise the table in every call. TensorRT has
    no lookup in integers; it keeps the codes in the plan and dequantises as it reads.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    made = {node.output[0]: node for node in model.graph.node}
    nodes = []
    for node in model.graph.node:
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
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(path))


def check_quantization(
    tensors: Mapping[str, GraphTensor], quantization: Quantization, opset: int
) -> None:
    """Refuse what cannot be quantised as asked, before a graph is traced.

    Raises:
        UnsupportedError: int4 over a width that no block divides, or below opset 21.
    """
    if Scheme.INT4 not in quantization.values():
        return
    if opset < INT4_OPSET:
        raise UnsupportedError(
            f"--quantize int4: got opset {opset}, expected {INT4_OPSET} or later",
            hint="use --quantize int8 with --graph compat, or --graph fixed",
        )
    for name, tensor in tensors.items():
        part = part_of(name, is_product=True)
        if part is not None and quantization.get(part) is Scheme.INT4:
            block_of(name, tensor.shape[1])


def _initializers(
    graph: Any,
    use: QuantizedUse,
    codes: tuple[int, ...],
    scales: tuple[int, ...],
    dtype: Any,
) -> list[Any]:
    """Add the initialisers of a weight, still without content."""
    import onnx_ir

    kinds = {
        Scheme.INT4: onnx_ir.DataType.INT4,
        Scheme.INT8: onnx_ir.DataType.INT8,
        Scheme.FP8: onnx_ir.DataType.FLOAT8E4M3FN,
    }
    made = []
    for suffix, shape, kind in ((CODES, codes, kinds[use.scheme]), (SCALES, scales, dtype)):
        value = onnx_ir.Value(
            name=use.name + suffix, type=onnx_ir.TensorType(kind), shape=onnx_ir.Shape(shape)
        )
        graph.initializers[value.name] = value
        made.append(value)
    return made


def _replace(graph: Any, node: Any, nodes: list[Any]) -> None:
    """Put ``nodes`` in the place of ``node``; the last one yields its output."""
    old, new = node.outputs[0], nodes[-1].outputs[0]
    new.name, new.type, new.shape = old.name, old.type, old.shape
    graph.insert_before(node, nodes)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
