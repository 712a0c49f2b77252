"""A bf16 graph and its weights with every bfloat16 widened, for backends without its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.export.checkpoint.tensors import GraphTensor, from_tensor
from draftrt.export.graph.files import load_whole
from draftrt.export.weights.quantized import QuantizedRef, RequantizedRef


def widened(tensor: GraphTensor) -> GraphTensor:
    """Return a bfloat16 weight as float32 with the same values; others as they are."""
    if tensor.dtype != "bfloat16":
        return tensor
    if isinstance(tensor.source, QuantizedRef | RequantizedRef):  # the twin dequantises in float32
        return GraphTensor(tensor.name, tensor.shape, "float32", tensor.source.exact())
    content = tensor.source.read().to(torch.bfloat16).float()
    ref = from_tensor(tensor.name, content)
    return GraphTensor(tensor.name, tensor.shape, "float32", ref)


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
