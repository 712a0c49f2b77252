"""A draft graph with its hidden rows and logits made visible as further outputs.

A bundle's graph gives ids; whether the distributions behind them agree shows only inside. The two
points are found by the weights that make them, which keep their checkpoint names in every graph:
``norm.weight`` and ``lm_head.weight``. Nothing that is there is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftrt.export.graph.edit import makers, readers
from draftrt.spec import DrafterSpec

HIDDEN, LOGITS = "hidden", "base_logits"
WEIGHT_OF = {HIDDEN: "norm.weight", LOGITS: "lm_head.weight"}
PASSED_BY_WEIGHTS = {"Cast", "Transpose", "DequantizeLinear"}
SHAPING = {"Cast", "Mul", "Div", "Tanh"}  # multiplier and soft cap behind the LM head
PREFIX = "draftrt.tap."


def add_taps(path: Path, spec: DrafterSpec) -> tuple[bytes, tuple[str, ...]]:
    """Return an ONNX file with further outputs, its weights left where they are.

    Args:
        path: the graph.
        spec: its drafter.

    Returns:
        The serialised model, whose external data lies in the folder of ``path``; and the names of
        the outputs added: ``hidden`` [1, n, H] and ``base_logits`` [1, n, W], both float32, those
        that the graph does not give already and whose weight is found in it.
    """
    from draftrt.onnx_session import read_onnx

    model = read_onnx(path)
    graph = model.graph
    have = {value.name for value in graph.output}
    added = []
    for name, weight in WEIGHT_OF.items():
        made = _made_with(graph, weight)
        if name in have or made is None:
            continue
        if name == LOGITS:
            made = _shaped(graph, made)
        _give(model, name, made, spec)
        added.append(name)
    return model.SerializeToString(), tuple(added)


def _made_with(graph: Any, weight: str) -> str | None:
    """Return what the one node that uses a weight makes; None without exactly one."""
    from draftrt.export.graph.quantize import whole_product
    from draftrt.export.weights.tensors import CODES

    names = {weight, weight + CODES}
    users: list[Any] = []
    for node in graph.node:  # in topological order
        if not names.intersection(node.input):
            continue
        if node.op_type in PASSED_BY_WEIGHTS:
            names.update(node.output)
        else:
            users.append(node)
    if len(users) != 1:
        return None
    return whole_product(readers(graph), str(users[0].output[0]))


def _shaped(graph: Any, name: str) -> str:
    """Return the logits behind the head's product: multiplied and capped, before any bias."""
    users_of = readers(graph)
    while True:
        users = users_of.get(name, [])
        if len(users) != 1 or users[0].op_type not in SHAPING:
            return name
        name = str(users[0].output[0])


def _give(model: Any, name: str, value: str, spec: DrafterSpec) -> None:
    """Add the last rows of a value [K or n, width] as an output [1, n, width] float32."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    assert name not in makers(graph), f"the graph has a value {name!r} already"
    constants = {
        "starts": [-spec.num_draft_tokens],
        "ends": [np.iinfo(np.int64).max],
        "axes": [0],
    }
    for key, content in constants.items():
        array = np.array(content, np.int64)
        graph.initializer.append(numpy_helper.from_array(array, f"{PREFIX}{name}.{key}"))
    inner = [f"{PREFIX}{name}.{step}" for step in ("wide", "rows")]
    graph.node.extend(
        [
            helper.make_node("Cast", [value], [inner[0]], to=TensorProto.FLOAT),
            helper.make_node(
                "Slice",
                [inner[0], *(f"{PREFIX}{name}.{key}" for key in constants)],
                [inner[1]],
            ),
            helper.make_node("Unsqueeze", [inner[1], f"{PREFIX}{name}.axes"], [name]),
        ]
    )
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
