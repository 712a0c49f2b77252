"""A traced graph and unread tensors to an ONNX file with one external data file, streamed.

Tensors are copied one slice at a time, so that memory does not grow with the model. Tensors of at
most 1 KB stay inside the ONNX file; two initialisers with the same content on disk share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from draftrt.errors import ExportError
from draftrt.export.assemble import GraphTensor
from draftrt.export.grouped_attention import group_attention
from draftrt.export.quantized_file import write_quantized
from draftrt.export.quantized_graph import (
    CODES,
    SCALES,
    QuantizedUse,
    look_up_codes,
    quantize_graph,
)
from draftrt.quantization import Quantization

INLINE_BYTES = 1024
ALIGNMENT = 4096
SLICE_BYTES = 1 << 25


def write_graph(
    model: Any,
    tensors: Mapping[str, GraphTensor],
    path: Path,
    sizes: Mapping[str, int],
    quantization: Quantization | None = None,
) -> Path:
    """Bind the tensors to the graph's initialisers and write the files.

    Two ONNX files share the data: ``path`` with the sizes fixed (TensorRT writes caches in place
    only where their size is known) and `flexible_path` with them open, its attention in the form
    that is fast on ONNX Runtime.

    Args:
        model: traced ``onnx_ir.Model`` with placeholder initialisers.
        tensors: content of every initialiser that stands for a weight.
        path: ONNX file to write; the data file lies beside it as ``<name>.data``.
        sizes: symbolic size to the number it is fixed to.
        quantization: parts whose weights are stored quantised.

    Returns:
        The data file.

    Raises:
        ExportError: graph and tensors do not name the same weights.
    """
    import onnx_ir

    data = path.with_name(path.name + ".data")
    graph = model.graph
    lost = sorted(set(tensors) - set(graph.initializers))
    if lost:
        raise ExportError(f"weights that the traced graph does not use: {lost[:8]}")
    placed: dict[Any, tuple[int, int]] = {}
    quantised = quantize_graph(model, tensors, quantization or {})
    with data.open("wb") as stream:
        for use in quantised:
            _bind_quantised(graph, use, stream, data)
        for name, tensor in tensors.items():
            if name not in graph.initializers:  # every use of it is quantised
                continue
            value = graph.initializers[name]
            if list(value.shape) != list(tensor.shape):
                raise ExportError(
                    f"{name}: traced with shape {list(value.shape)}, got {list(tensor.shape)}"
                )
            value.const_value = _bind(tensor, stream, data, placed)
    left = [
        name
        for name, value in graph.initializers.items()
        if name not in tensors
        and value.const_value is not None
        and value.const_value.nbytes > 1 << 20
    ]
    if left:
        raise ExportError(f"the exporter left large constants of its own: {left[:8]}")
    flexible = flexible_path(path)
    onnx_ir.save(model, flexible)
    _write_fixed(flexible, path, sizes)
    group_attention(flexible)
    if quantised:
        look_up_codes(flexible)
    return data


def flexible_path(path: Path) -> Path:
    """Return the name of the variant with open cache sizes, ``draft.flexible.onnx``."""
    return path.with_name(f"{path.stem}.flexible.onnx")


def _write_fixed(flexible: Path, path: Path, sizes: Mapping[str, int]) -> None:
    """Write the graph with symbolic sizes replaced by numbers; the data file is shared."""
    import onnx

    model = onnx.load(str(flexible), load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    del model.graph.value_info[:]
    onnx.save(model, str(path))


def _bind(
    tensor: GraphTensor, stream: BinaryIO, data: Path, placed: dict[Any, tuple[int, int]]
) -> Any:
    import onnx_ir

    size = tensor.dtype.itemsize
    for length in tensor.shape:
        size *= length
    if size <= INLINE_BYTES:
        content = tensor.source.read().to(tensor.dtype).contiguous()
        return onnx_ir.tensor(
            content.numpy() if tensor.dtype is not torch.bfloat16 else _bf16(content),
            name=tensor.name,
        )
    source = tensor.source
    key = (
        (source.file, source.offset, tensor.shape, tensor.dtype)
        if source.file is not None
        else tensor.name
    )
    if key not in placed:
        offset = _align(stream)
        for piece in slices(tensor):
            stream.write(piece)
        placed[key] = (offset, size)
    return _external(data, placed[key], tensor.name, _ir_dtype(tensor.dtype), tensor.shape)


def _bind_quantised(graph: Any, use: QuantizedUse, stream: BinaryIO, data: Path) -> None:
    for suffix, place in zip((CODES, SCALES), write_quantized(stream, use, _align), strict=True):
        value = graph.initializers[use.name + suffix]
        value.const_value = _external(data, place, value.name, value.dtype, tuple(value.shape))


def _align(stream: BinaryIO) -> int:
    """Pad the file to where a tensor may start and return that offset."""
    offset = -(-stream.tell() // ALIGNMENT) * ALIGNMENT
    stream.write(b"\0" * (offset - stream.tell()))
    return offset


def _external(
    data: Path, place: tuple[int, int], name: str, dtype: Any, shape: tuple[int, ...]
) -> Any:
    import onnx_ir

    return onnx_ir.ExternalTensor(
        location=data.name,
        offset=place[0],
        length=place[1],
        dtype=dtype,
        shape=onnx_ir.Shape(shape),
        name=name,
        base_dir=str(data.parent),
    )


def slices(tensor: GraphTensor) -> Iterator[bytes]:
    """Yield the content in the graph's element type, a slice of rows at a time."""
    source, rows = tensor.source, tensor.shape[0] if tensor.shape else 1
    width = max(1, source.num_bytes // max(rows, 1))
    step = max(1, SLICE_BYTES // width)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows)).read().to(tensor.dtype).contiguous()
        yield part.view(torch.uint8).numpy().tobytes()


def _bf16(content: torch.Tensor) -> Any:
    import ml_dtypes

    return content.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _ir_dtype(dtype: torch.dtype) -> Any:
    import onnx_ir

    return {
        torch.float32: onnx_ir.DataType.FLOAT,
        torch.float16: onnx_ir.DataType.FLOAT16,
        torch.bfloat16: onnx_ir.DataType.BFLOAT16,
        torch.int64: onnx_ir.DataType.INT64,
    }[dtype]
