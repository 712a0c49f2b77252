"""A bf16 graph and its weights with every bfloat16 widened, for backends without its kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.export.checkpoint.tensors import GraphTensor, from_tensor
from draftrt.export.graph.files import load_whole
from draftrt.export.weights.quantized import QuantizedRef, RequantizedRef
from draftrt.spec import Precision


def widened(tensor: GraphTensor) -> GraphTensor:
    """Return a bfloat16 weight as float32 with the same values; others as they are."""
    if tensor.dtype != "bfloat16":
        return tensor
    if isinstance(tensor.source, QuantizedRef | RequantizedRef):  # the twin dequantises in float32
        return GraphTensor(tensor.name, tensor.shape, "float32", tensor.source.exact())
    content = tensor.source.read().to(torch.bfloat16).float()
    ref = from_tensor(tensor.name, content)
    return GraphTensor(tensor.name, tensor.shape, "float32", ref)


@contextmanager
def runnable(
    path: Path, precision: Precision, scratch: Path | None = None
) -> Iterator[tuple[Path, Precision]]:
    """Give a graph that ONNX Runtime's CPU provider can run, and the precision it computes in.

    That is the file itself, or for a while the float32 twin of a bf16 graph: the same nodes with
    every bfloat16 type replaced and the bfloat16 weights widened.

    Args:
        path: the graph.
        precision: of the graph.
        scratch: takes the twin; None for the folder of ``path``.
    """
    if precision is not Precision.BF16:
        yield path, precision
        return
    with tempfile.TemporaryDirectory(dir=scratch or path.parent, prefix=".twin-") as folder:
        twin = Path(folder) / path.name
        write_float32_twin(path, twin)
        yield twin, Precision.FP32


def write_float32_twin(source: Path, path: Path) -> None:
    """Write a bf16 graph with every bfloat16 type replaced by float32."""
    import onnx
    from onnx import TensorProto, numpy_helper

    model = load_whole(source)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for node in model.graph.node:
        widen_attributes(node)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del model.graph.value_info[:]
    onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data")


def widen_attributes(node: Any) -> None:
    """Turn bfloat16 constants and casts of a node into float32."""
    import onnx

    brain = onnx.TensorProto.BFLOAT16
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == brain:
            attribute.i = onnx.TensorProto.FLOAT
        if attribute.HasField("t") and attribute.t.data_type == brain:
            wide = onnx.numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(wide))
