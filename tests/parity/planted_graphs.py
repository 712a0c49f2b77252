"""Faults to plant in a drafter's ONNX graph, each in one place, by editing its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Change = Callable[[Any], None]


@dataclass(frozen=True)
class Plant:
    """A fault and what must be said about it.

    Attributes:
        name: of the fault.
        change: plants it in a graph.
        place: the place that must be named.
        op: operator that must be named.
        evidence: words of what must be said about it.
    """

    name: str
    change: Change
    place: str
    op: str
    evidence: str = ""


def nodes_of(graph: Any, op: str) -> list[Any]:
    return [node for node in graph.node if node.op_type == op]


def reading(graph: Any, name: str) -> Any:
    """The first node that reads a value."""
    return next(node for node in graph.node if name in node.input)


def making(graph: Any, name: str) -> Any:
    return next(node for node in graph.node if name in node.output)


def set_attribute(node: Any, name: str, value: Any) -> None:
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def swap_inputs(a: Any, b: Any, index: int) -> None:
    a.input[index], b.input[index] = b.input[index], a.input[index]


def constant(graph: Any, array: Any) -> str:
    name = f"planted_constant_{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def insert(graph: Any, node: Any, index: int, *made: tuple[str, list[str], dict[str, Any]]) -> None:
    """Put nodes in front of an input; ``""`` among their inputs is the value so far."""
    value, place = node.input[index], list(graph.node).index(node)
    for number, (op, others, attributes) in enumerate(made):
        out = f"planted_{op}_{number}"
        inputs = [value if name == "" else name for name in others]
        graph.node.insert(
            place + number, helper.make_node(op, inputs, [out], name=f"{out}.node", **attributes)
        )
        value = out
    again = next(one for one in graph.node if list(one.output) == list(node.output))
    again.input[index] = value


def interleaved_in_layer_3(graph: Any) -> None:
    for node in nodes_of(graph, "RotaryEmbedding")[6:8]:
        set_attribute(node, "interleaved", 1)


def window_one_off(graph: Any) -> None:
    """Compare with a window that is one larger, in every sliding layer."""
    for node in nodes_of(graph, "Less") + nodes_of(graph, "GreaterOrEqual"):
        by = np.array(1, np.int64)
        insert(graph, node, 1, ("Add", ["", constant(graph, by)], {}))
        return
    raise AssertionError("no comparison with a window in this graph")


def one_row_too_many(graph: Any) -> None:
    """Let the full attention of layer 1 see one row fewer."""
    node = nodes_of(graph, "Attention")[1]
    one = constant(graph, np.array([1], np.int64))
    insert(graph, node, 6, ("Sub", ["", one], {}))


def norms_exchanged(graph: Any) -> None:
    pair = [reading(graph, f"layers.2.self_attn.{name}_norm.weight") for name in "qk"]
    swap_inputs(pair[0], pair[1], 1)


def square_weight_transposed(graph: Any) -> None:
    set_attribute(reading(graph, "layers.1.self_attn.o_proj.weight"), "transB", 0)


def residual_in_float16(graph: Any) -> None:
    """Squeeze what goes into layer 2 through float16, where it is too large for that."""
    node = reading(graph, "layers.2.input_layernorm.weight")
    large, small = (constant(graph, np.float32(x)) for x in (1e6, 1e-6))
    insert(
        graph,
        node,
        0,
        ("Mul", ["", large], {}),
        ("Cast", [""], {"to": TensorProto.FLOAT16}),
        ("Cast", [""], {"to": TensorProto.FLOAT}),
        ("Mul", ["", small], {}),
    )


def other_epsilon(graph: Any) -> None:
    set_attribute(reading(graph, "layers.1.post_attention_layernorm.weight"), "epsilon", 0.5)


def other_scale(graph: Any) -> None:
    set_attribute(nodes_of(graph, "Attention")[0], "scale", 0.125)


def no_hidden_norm(graph: Any) -> None:
    norm = reading(graph, "hidden_norm.weight")
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == norm.output[0]:
                node.input[index] = norm.input[0]
    graph.node.remove(norm)


def taps_in_other_order(graph: Any) -> None:
    node = reading(graph, "fc.weight")
    width = 64
    columns = np.concatenate([np.arange(width) + k * width for k in (2, 1, 0)])
    insert(graph, node, 0, ("Gather", ["", constant(graph, columns)], {"axis": 1}))


def map_one_off(graph: Any) -> None:
    node = reading(graph, making(graph, "draft_ids").input[0])
    insert(graph, node, 0, ("Add", ["", constant(graph, np.array([1], np.int64))], {}))


def previous_token_shifted(graph: Any) -> None:
    """Condition the third draft on the token that the second one was conditioned on."""
    steps = [n for n in nodes_of(graph, "Gather") if n.input[0] == "markov_head.markov_w1.weight"]
    steps[2].input[1] = steps[1].input[1]


def residual_lost(graph: Any) -> None:
    node = making(graph, reading(graph, "layers.3.post_attention_layernorm.weight").input[0])
    assert node.op_type == "Add"
    node.op_type = "Identity"
    del node.input[0]


def gate_and_up_exchanged(graph: Any) -> None:
    pair = [reading(graph, f"layers.0.mlp.{name}_proj.weight") for name in ("gate", "up")]
    swap_inputs(pair[0], pair[1], 1)


def other_mask_token(graph: Any) -> None:
    node = making(graph, reading(graph, "embed_tokens.weight").input[1])
    assert node.op_type == "Concat"
    node.input[1] = constant(graph, np.full(3, 7, np.int64))


def positions_one_late(graph: Any) -> None:
    one = constant(graph, np.array(1, np.int64))
    for name in ("rope.cos", "rope.sin"):
        place = next(i for i, n in enumerate(graph.node) if name in n.input)
        node = graph.node[place]
        out = f"planted_{name}"
        graph.node.insert(place, helper.make_node("Add", [node.input[1], one], [out], name=out))
        graph.node[place + 1].input[1] = out


def keys_written_one_late(graph: Any) -> None:
    node = making(graph, "present_key_2")
    one = constant(graph, np.array([1], np.int64))
    insert(graph, node, 2, ("Add", ["", one], {}))


PLANTS = (
    Plant(
        "interleaved RoPE in layer 3",
        interleaved_in_layer_3,
        "layers.3.self_attn.query",
        "RotaryEmbedding",
        "rotated as interleaved",
    ),
    Plant("window one off", window_one_off, "mask", "Add", "first 1 later"),
    Plant(
        "one row hidden",
        one_row_too_many,
        "layers.1.self_attn.attention",
        "Sub",
        "Sub planted_Sub_0.node is there and should not be",
    ),
    Plant(
        "norms exchanged",
        norms_exchanged,
        "layers.2.self_attn.q_norm",
        "RMSNormalization",
        "reads layers.2.self_attn.k_norm.weight",
    ),
    Plant(
        "weight transposed",
        square_weight_transposed,
        "layers.1.self_attn.o_proj",
        "Gemm",
    ),
    Plant(
        "residual in float16",
        residual_in_float16,
        "into layers.2.input_layernorm",
        "Cast",
        "overflow",
    ),
    Plant(
        "other epsilon",
        other_epsilon,
        "layers.1.post_attention_layernorm",
        "RMSNormalization",
        "epsilon 0.5, expected 1e-06",
    ),
    Plant(
        "other scale",
        other_scale,
        "layers.0.self_attn.attention",
        "Attention",
        "scale 0.125, expected 0.25",
    ),
    Plant(
        "no hidden norm",
        no_hidden_norm,
        "into layers.0.self_attn.k_proj",
        "RMSNormalization",
        "no node of the graph uses hidden_norm.weight",
    ),
    Plant(
        "taps in another order",
        taps_in_other_order,
        "into fc",
        "Gather",
        "in the order [4, 3, 1]",
    ),
    Plant("map one off", map_one_off, "draft_ids", "Add"),
    Plant(
        "previous token shifted",
        previous_token_shifted,
        "into markov_head.markov_w1.2",
        "Gather",
        "what the reference has at into markov_head.markov_w1.1",
    ),
    Plant(
        "residual lost",
        residual_lost,
        "into layers.3.post_attention_layernorm",
        "Identity",
        "what the reference has at layers.3.self_attn.o_proj",
    ),
    Plant("gate and up exchanged", gate_and_up_exchanged, "layers.0.mlp.gate_proj", "Gemm"),
    Plant("other mask token", other_mask_token, "into embed_tokens.output", "Concat", "7 for 259"),
    Plant("positions one late", positions_one_late, "into rope.cos.rows", "Add", "1 for 0"),
    Plant("keys one row late", keys_written_one_late, "layers.2.self_attn.keys", "Add"),
)
