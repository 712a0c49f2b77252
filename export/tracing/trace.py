"""A module without weights to an ONNX graph; knows signatures, not models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from draftrt.errors import ExportError
from draftrt.export.tracing.operators import FORMS
from draftrt.export.tracing.recorder import Recorder, constant_proto, onnx_type
from draftrt.signature import LARGEST_BLOCK, Signature
from draftrt.spec import Profile

IR_VERSION = 10
LARGEST_CONSTANT = 1 << 20
EXAMPLES = (211, 307, 401, 503, 601, 701, 809, 907, 1009, 1103, 1201)  # of open sizes


def trace(module: nn.Module, signature: Signature, profile: Profile) -> Any:
    """Trace ``module`` over inputs of the signature's shapes.

    Args:
        module: takes the inputs in order, returns the outputs in order; its weights hold no
            contents worth reading.
        signature: inputs, outputs and ranges of the symbolic sizes.
        profile: operators allowed; decides the opset.

    Returns:
        An ``onnx.ModelProto`` whose nodes call weights by the module's parameter names; the
        weights themselves are not there.

    Raises:
        ExportError: the module does what the recorder cannot follow.
    """
    weights = dict(module.named_parameters())
    open_sizes = _open_sizes(signature, weights.values())
    recorder = Recorder(profile.opset, FORMS)
    for name, weight in weights.items():
        recorder.input(name, weight)
    inputs = []
    for tensor in signature.inputs:
        sizes = [open_sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        example = torch.zeros(1, dtype=getattr(torch, tensor.dtype)).expand(sizes)
        axes = [axis for axis, size in enumerate(tensor.shape) if isinstance(size, str)]
        inputs.append(recorder.input(tensor.name, example, axes))
    with torch.no_grad(), recorder:
        outputs = module(*inputs)
    names = signature.output_names()
    if len(outputs) != len(names):
        raise ExportError(f"the module returned {len(outputs)} values, expected {names}")
    symbols = {size: name for name, size in open_sizes.items()}
    model = _model(recorder, [tensor.name for tensor in signature.inputs], names, outputs, symbols)
    recorder.forget()  # it refers to itself, and examples can be large
    return model


def _open_sizes(signature: Signature, weights: Iterable[Tensor]) -> dict[str, int]:
    """Return a number for each open size that no fixed one equals, a block's rows added or not."""
    fixed = {size for weight in weights for size in weight.shape}
    for tensor in (*signature.inputs, *signature.outputs):
        fixed.update(size for size in tensor.shape if isinstance(size, int))
    free = [
        number
        for number in EXAMPLES
        if not fixed.intersection(range(number, number + LARGEST_BLOCK + 1))
    ]
    if len(free) < len(signature.dimensions):
        raise ExportError(
            f"no numbers left for the open sizes {sorted(signature.dimensions)}",
            hint="a defect of draftrt: add to EXAMPLES in export/tracing/trace.py",
        )
    return dict(zip(signature.dimensions, free, strict=False))


def _model(
    recorder: Recorder,
    inputs: Sequence[str],
    names: Sequence[str],
    outputs: Sequence[Tensor],
    symbols: dict[int, str],
) -> Any:
    from onnx import ModelProto, helper

    outer: dict[str, str] = {}
    for name, tensor in zip(names, outputs, strict=True):
        value = recorder.name(tensor)
        if value in outer or value not in {out for node in recorder.nodes for out in node.output}:
            value = recorder.copy(value)
        outer[value] = name
    nodes = used_nodes(recorder.nodes, set(outer))
    renamed = recorder.titles | outer
    for node in nodes:
        node.name = recorder.titles.get(node.output[0], node.output[0])
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    read = {name for node in nodes for name in node.input}
    constants = [
        constant_proto(name, content)
        for name, content in recorder.constants.items()
        if name in read
    ]
    large = [tensor.name for tensor in constants if len(tensor.raw_data) > LARGEST_CONSTANT]
    if large:
        raise ExportError(f"the graph holds large constants of its own: {large[:8]}")

    def info(name: str, tensor: Tensor) -> Any:
        sizes = [symbols.get(size, size) for size in tensor.shape]
        known = [None if isinstance(s, int) and recorder.is_open(s) else s for s in sizes]
        return helper.make_tensor_value_info(name, onnx_type(tensor.dtype), known)

    made = {name: key for key, name in renamed.items()}
    inner = [name for node in nodes for name in node.output if name not in set(names)]
    graph = helper.make_graph(
        nodes,
        "draftrt",
        [info(name, recorder.values[name]) for name in inputs],
        [info(name, tensor) for name, tensor in zip(names, outputs, strict=True)],
        constants,
        value_info=[
            info(name, recorder.values[made.get(name, name)])
            for name in inner
            if made.get(name, name) in recorder.values
        ],
    )
    model: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", recorder.opset)], producer_name="draftrt"
    )
    model.ir_version = IR_VERSION
    return model


def used_nodes(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    """Return the nodes that the wanted values need."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]
