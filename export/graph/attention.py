"""Attention as ONNX Runtime runs it fastest on a CPU: a written mask, and grouped queries as rows.

There ``Attention`` with a valid length writes its mask anew in every layer, and reads each key head
once for every query head that shares it. A mask made once, and the queries of a group as further
rows of their key head, give the same numbers. TensorRT keeps the other form, which it fuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftrt.errors import ExportError
from draftrt.export.graph.edit import attributes_of, edited, replace_nodes

QUERY, KEY, VALUE, MASK, VALID = 0, 1, 2, 3, 6  # inputs of Attention


def group_attention(path: Path) -> None:
    """Rewrite every ``Attention`` node of an ONNX file; answers stay the same.

    Raises:
        ExportError: an ``Attention`` node is of a form that draftrt does not write.
    """
    with edited(path) as model:
        writer = _AttentionWriter(model.graph)
        for node in model.graph.node:
            if node.op_type == "Attention":
                writer.rewrite(node)
            else:
                writer.nodes.append(node)
        replace_nodes(model.graph, writer.nodes)


class _AttentionWriter:
    """The new list of nodes; every mask and constant is made once."""

    def __init__(self, graph: Any) -> None:
        self.nodes: list[Any] = []
        self._graph = graph
        self._sizes: Mapping[str, list[int]] = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.output, *graph.value_info)
        }
        self._made: dict[object, str] = {}

    def rewrite(self, node: Any) -> None:
        attributes = attributes_of(node)
        inputs = [*node.input, *[""] * (VALID + 1 - len(node.input))]
        query, key = self._sizes.get(inputs[QUERY], []), self._sizes.get(inputs[KEY], [])
        is_known = not set(attributes) - {"scale", "is_causal"} and not any(inputs[4:VALID])
        if not is_known or len(query) != 4 or len(key) != 4 or not (inputs[MASK] or inputs[VALID]):
            raise ExportError(
                f"{node.name}: Attention over {list(node.input)} with {sorted(attributes)} and "
                f"shapes {query}, {key}, expected 4 axes and a mask or a valid length",
                hint="a defect of draftrt or of the installed torch, please report it",
            )
        (_, heads, _, dim), groups = query, key[1]
        mask = self._mask(inputs, bool(attributes.get("is_causal")), heads // groups)
        (out,) = node.output
        names = [f"{out}.rows", f"{out}.grouped"]
        rows = self._node(
            "Reshape", [inputs[QUERY], self._constant([1, groups, -1, dim])], names[0]
        )
        attended = self._node(
            "Attention",
            [rows, inputs[KEY], inputs[VALUE], mask],
            names[1],
            scale=attributes["scale"],
        )
        self._node("Reshape", [attended, self._constant([1, heads, -1, dim])], out)

    def _mask(self, inputs: list[str], is_causal: bool, times: int) -> str:
        """Return a bool mask [1, 1, times * R, L]; rows of a group lie head by head."""
        wanted = (inputs[MASK], inputs[VALID], is_causal, times)
        if wanted not in self._made:
            mask = inputs[MASK] or self._visible(inputs, is_causal)
            if times > 1:
                mask = self._node("Tile", [mask, self._constant([1, 1, times, 1])])
            self._made[wanted] = mask
        return self._made[wanted]

    def _visible(self, inputs: list[str], is_causal: bool) -> str:
        """Return the mask that a valid length stands for, [1, 1, R, L]."""
        columns, _ = self._range(inputs[KEY])
        rows, count = self._range(inputs[QUERY])
        if not is_causal:  # every row sees what the last one sees; ONNX Runtime repeats no mask row
            rows = self._node("Mul", [rows, self._constant(0)])
            count = self._constant([1])
        first = self._node("Sub", [inputs[VALID], count])
        last = self._node("Add", [self._node("Unsqueeze", [rows, self._constant([1])]), first])
        seen = self._node("LessOrEqual", [columns, last])  # [R, L]
        return self._node("Unsqueeze", [seen, self._constant([0, 1])])

    def _range(self, tensor: str) -> tuple[str, str]:
        """Return 0 ... n - 1 and [n], n the tensor's third size."""
        count = self._node("Shape", [tensor], start=2, end=3)
        end = self._node("Squeeze", [count])
        return self._node("Range", [self._constant(0), end, self._constant(1)]), count

    def _constant(self, value: list[int] | int) -> str:
        import onnx

        key = ("constant", str(value))
        if key not in self._made:
            name = f"grouped_attention.constant_{len(self._graph.initializer)}"
            array = np.array(value, np.int64)
            self._graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            self._made[key] = name
        return self._made[key]

    def _node(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        import onnx

        output = output or f"grouped_attention.{kind}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output
