"""What can be told about a graph before it is built: unsupported nodes, inputs, arithmetic in use.

Runs in the build process, on TensorRT objects; the module (``tensorrt_rtx`` or ``tensorrt``) is an
argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from draftrt.engines.capabilities import Feature
from draftrt.errors import BuildError
from draftrt.onnx_session import read_onnx

SHOWN = 20
# Attributes that the parser honours or refuses. It takes any other without a word and computes
# something else: the windows of later opsets, as of TensorRT-RTX 1.7.1.
HEEDED = {
    "Attention": frozenset(
        ("scale", "is_causal", "q_num_heads", "kv_num_heads", "softcap", "softmax_precision")
    )
}


def check_attributes(onnx: Path) -> None:
    """Refuse a graph with attributes that the backend is known to ignore; weights are not read.

    Args:
        onnx: ONNX file.

    Raises:
        BuildError: names every such node and its attributes.
    """
    ignored = {
        node.name or node.output[0]: sorted(
            {one.name for one in node.attribute} - HEEDED[node.op_type]
        )
        for node in read_onnx(onnx).graph.node
        if node.op_type in HEEDED
    }
    lines = [f"{name!r}: {', '.join(names)}" for name, names in ignored.items() if names]
    if not lines:
        return
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"and {len(lines) - SHOWN} more"]
    raise BuildError(
        "\n    ".join(
            ["the backend would ignore attributes of Attention and answer otherwise:", *lines]
        ),
        hint="say the same with a mask: `draftrt export` does",
    )


def check_nodes(trt: ModuleType, logger: Any, onnx: Path) -> None:
    """Refuse a graph with nodes that the parser does not take; weights are not read.

    Args:
        trt: TensorRT module.
        logger: its logger.
        onnx: ONNX file; its external data lies beside it.

    Raises:
        BuildError: names every such node and its operator.
    """
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if parser.supports_model_v2(onnx.read_bytes(), str(onnx)):
        return
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    lines = [_describe(error) for error in errors[:SHOWN]]
    if len(errors) > SHOWN:
        lines.append(f"and {len(errors) - SHOWN} more")
    raise BuildError(
        "\n    ".join([f"the parser does not take {len(errors)} node(s) of the graph:", *lines]),
        hint="the graph must do without these operators, or without this use of them",
    )


def check_inputs(network: Any, expected: Iterable[str]) -> None:
    """Refuse a network whose inputs the signature's shape ranges do not describe.

    An input left without a range would be frozen at one size, and one whose *values* set shapes
    needs a range of values; neither may pass unnoticed.

    Raises:
        BuildError: lists every such input.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    found, wanted = {tensor.name for tensor in inputs}, set(expected)
    problems = [f"input {name!r} is not in the signature" for name in sorted(found - wanted)]
    problems += [f"input {name!r} is not in the graph" for name in sorted(wanted - found)]
    problems += [
        f"the values of input {tensor.name!r} set the shape of a tensor"
        for tensor in inputs
        if tensor.is_shape_tensor
    ]
    if problems:
        raise BuildError("; ".join(problems), hint="export the bundle again")


def features_in_use(trt: ModuleType, network: Any) -> dict[Feature, str]:
    """Return each special arithmetic of a parsed network with the first layer that uses it."""
    by_dtype = {
        getattr(trt.DataType, name): feature
        for name, feature in (
            ("BF16", Feature.BF16),
            ("FP8", Feature.FP8),
            ("FP4", Feature.FP4),
        )
        if hasattr(trt.DataType, name)
    }
    used: dict[Feature, str] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for output in range(layer.num_outputs):
            feature = by_dtype.get(layer.get_output(output).dtype)
            if feature is not None:
                used.setdefault(feature, f"layer {layer.name!r}")
        is_matmul = layer.type == trt.LayerType.MATRIX_MULTIPLY
        if is_matmul and layer.get_input(0).dtype == trt.DataType.FLOAT:
            used.setdefault(Feature.FP32_MATMUL, f"layer {layer.name!r}")
    return used


def _describe(error: Any) -> str:
    """Return a parser error as ``BitwiseAnd at node 'mask': reason``.

    The reason is the parser's first informative line: it repeats the node's name, and on a machine
    without a driver adds lines about that.
    """
    text = f"{error.node_operator() or 'the graph'} at node {error.node_name()!r}"
    for line in error.desc().splitlines():
        reason = line.strip()
        is_noise = reason in ("", "false") or reason.startswith("Invalid Node")
        if not is_noise and "cudaError" not in reason:
            return f"{text}: {reason}"
    return text
