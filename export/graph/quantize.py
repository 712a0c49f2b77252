"""A traced graph rewritten to multiply with, and look up in, quantised weights: standard Q/DQ.

A product becomes ``Gemm(x, DequantizeLinear(codes [in, out], scales))``: ONNX Runtime fuses that
form into one kernel that reads the codes, and TensorRT-RTX builds it. With codes [out, in] ONNX
Runtime dequantises the whole weight in every call, and so it does with a MatMul whose output is
added to something, because it makes another Gemm of the two first. Each use gets codes of its own,
because two products of one quantised weight crash TensorRT's builder. Where a checkpoint's inputs
are not in the order of its groups, the codes are sorted by them and a Gather sorts x. Where codes
alone are not the weight, the sums of x over the blocks are multiplied with what each block adds,
and the two products summed, all of it in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.dtypes import BY_NAME
from draftrt.errors import ExportError
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.edit import attributes_of, edited, makers, replace_nodes
from draftrt.export.weights.tensors import CODES, ORDER, SCALES, QuantizedUse
from draftrt.quantization import HEAD, MIDDLE, TABLES, Base, Part, Quantization, part_of

PARTIAL = "partial"  # a product with codes to which something is added


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
    sums = dict[tuple[str, int | None], str]()
    for node in graph.node:
        use = _use_of(node, tensors, quantization)
        if use is None:
            nodes.append(node)
            continue
        if use.name in found:
            raise ExportError(f"{use.name}: a quantised weight feeds two products, expected one")
        found[use.name] = use
        nodes += _Product(node, use, sums).nodes() if use.is_product else _lookup(node, use)
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


class _Product:
    """``Gemm(x, W [out, in], bias, transB=1)`` to a product with dequantised [in, out]."""

    def __init__(
        self, node: Any, use: QuantizedUse, sums: dict[tuple[str, int | None], str]
    ) -> None:
        """Take the node.

        Args:
            node: the product.
            use: its weight.
            sums: value and size of blocks to the value that holds the blocks' sums; added to.

        Raises:
            ExportError: it is no product that draftrt writes.
        """
        attributes = attributes_of(node)
        if attributes.pop("transB", 0) != 1 or any(value != 1 for value in attributes.values()):
            raise ExportError(
                f"{node.name}: Gemm with {attributes}, expected transB alone",
                hint="a defect of draftrt, please report it",
            )
        self._node, self._use, self._sums = node, use, sums
        self._made: list[Any] = []

    def nodes(self) -> list[Any]:
        """Return the nodes that compute it."""
        use, [x, _, *bias] = self._use, self._node.input
        if use.tensor.kept is not None and use.tensor.kept.is_ordered:
            x = self._add("gather", "Gather", [x, use.name + ORDER], "gathered", axis=1)
        how = {"axis": 1} if use.block is None else {"axis": 0, "block_size": use.block}
        codes = [use.name + CODES, use.name + SCALES]
        wide = self._add("dequantize", "DequantizeLinear", codes, "dequantized", **how)
        if use.base is Base.NONE:
            self._add("", "Gemm", [x, wide, *bias])
            return self._made
        part = self._float(self._add("product", "Gemm", [x, wide, *bias], PARTIAL), "part")
        added = self._add("bases", "MatMul", [self._sums_of(x), self._base()], "added")
        if use.tensor.dtype == "float32":
            self._add("", "Add", [part, added])
        else:
            whole = self._add("sum", "Add", [part, added], "whole")
            self._add("", "Cast", [whole], to=BY_NAME[use.tensor.dtype].onnx)
        return self._made

    def _base(self) -> str:
        """What each block adds for a sum of one, [blocks, out] float32."""
        use = self._use
        scales = self._float(use.name + SCALES, "wide_scales")
        base = f"{use.name}.{use.base.value}"
        if use.base is Base.ZEROS:
            wide = self._add("wide_zeros", "Cast", [base], "wide_base", to=BY_NAME["float32"].onnx)
            return self._add("scale_zeros", "Mul", [wide, scales], "base")
        middle = self._constant("middle", [float(MIDDLE)], "float32")
        shift = self._add("shift", "Mul", [scales, middle], "shifted")
        return self._add("shift_minimums", "Add", [self._float(base, "wide_base"), shift], "base")

    def _sums_of(self, x: str) -> str:
        """Return the sums over each block of a value [R, in], [R, blocks] float32."""
        key = (x, self._use.block)
        if key not in self._sums:
            wide = self._float(x, "wide_inputs")
            if self._use.block is not None:
                shape = self._constant("shape", [0, -1, self._use.block], "int64")
                wide = self._add("split", "Reshape", [wide, shape], "split")
            axes = self._constant("axes", [-1], "int64")
            is_whole = int(self._use.block is None)
            self._sums[key] = self._add(
                "sums", "ReduceSum", [wide, axes], "sums", keepdims=is_whole
            )
        return self._sums[key]

    def _float(self, value: str, name: str) -> str:
        """Return a value of the graph's element type in float32."""
        if self._use.tensor.dtype == "float32":
            return value
        return self._add(name, "Cast", [value], name, to=BY_NAME["float32"].onnx)

    def _constant(self, name: str, content: list[Any], dtype: str) -> str:
        import onnx

        held = onnx.helper.make_tensor(name, BY_NAME[dtype].onnx, [len(content)], content)
        return self._add(f"{name}.constant", "Constant", [], f"{name}.value", value=held)

    def _add(
        self, name: str, kind: str, inputs: list[str], output: str = "", **attributes: Any
    ) -> str:
        """Add a node; return what it makes, the product's own output where none is named."""
        import onnx

        made = f"{self._use.name}.{output}" if output else self._node.output[0]
        called = f"{self._use.name}.{name}" if output else self._node.name
        self._made.append(onnx.helper.make_node(kind, inputs, [made], called, **attributes))
        return made


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
        onnx.helper.make_node("Gather", [wide, node.input[1]], list(node.output), node.name),
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
