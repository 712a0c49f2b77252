"""A graph and the places of its weights to ONNX files.

Weights lie in files beside the graph; tensors of at most 1 KB stay inside the ONNX file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from draftrt.errors import ExportError
from draftrt.export.graph.attention import group_attention
from draftrt.export.graph.quantize import CODES, SCALES, look_up_codes
from draftrt.export.tracing.recorder import onnx_type
from draftrt.export.weights.overflow import check_held
from draftrt.export.weights.places import Place, QuantizedWeight
from draftrt.export.weights.tensors import GraphTensor
from draftrt.quantization import Scheme


def write_graph(
    model: Any,
    tensors: Mapping[str, GraphTensor],
    places: Mapping[str, Place],
    path: Path,
    sizes: Mapping[str, int],
    quantised: Sequence[QuantizedWeight] = (),
) -> None:
    """Bind the weights to the graph and write the files.

    Two ONNX files share the data: ``path`` with the sizes fixed (TensorRT writes caches in place
    only where their size is known) and `flexible_path` with them open, its attention in the form
    that is fast on ONNX Runtime.

    Args:
        model: ``onnx.ModelProto`` whose nodes call the weights by name; it gets them here.
        tensors: content of every weight.
        places: where the larger ones lie.
        path: ONNX file to write.
        sizes: symbolic size to the number it is fixed to.
        quantised: weights that are there as codes and scales.

    Raises:
        ExportError: the graph does not use a weight.
    """
    import onnx

    used = {name for node in model.graph.node for name in node.input}
    lost = sorted(set(tensors) - used - {weight.use.tensor.name for weight in quantised})
    if lost:
        raise ExportError(f"weights that the traced graph does not use: {lost[:8]}")
    for weight in quantised:
        model.graph.initializer.extend(_quantised(weight))
    for name, tensor in tensors.items():
        if name not in used:
            continue
        place = places.get(name)
        content = inline(tensor) if place is None else external(tensor, place)
        model.graph.initializer.append(content)
    flexible = flexible_path(path)
    onnx.save(model, str(flexible))
    _write_fixed(model, path, sizes)
    group_attention(flexible)
    if quantised:
        look_up_codes(flexible)


def flexible_path(path: Path) -> Path:
    """Return the name of the variant with open cache sizes, ``draft.flexible.onnx``."""
    return path.with_name(f"{path.stem}.flexible.onnx")


def _write_fixed(model: Any, path: Path, sizes: Mapping[str, int]) -> None:
    """Write the graph with symbolic sizes replaced by numbers; it is changed."""
    import onnx

    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    del model.graph.value_info[:]
    onnx.save(model, str(path))


def inline(tensor: GraphTensor) -> Any:
    """Return a weight as a tensor that holds its content."""
    import onnx

    content = tensor.read().contiguous()
    check_held(tensor.name, tensor.source.read(), content, tensor.dtype)
    if tensor.dtype == "bfloat16":
        bits = content.view(torch.int16).numpy().tobytes()
        kind = onnx.TensorProto.BFLOAT16
        return onnx.helper.make_tensor(tensor.name, kind, tensor.shape, bits, raw=True)
    return onnx.numpy_helper.from_array(content.numpy(), tensor.name)


def external(tensor: GraphTensor, place: Place) -> Any:
    """Return a weight as a tensor whose content lies in a file."""
    return _external(tensor.name, onnx_type(tensor.torch_dtype), tensor.shape, place)


def _quantised(weight: QuantizedWeight) -> list[Any]:
    from onnx import TensorProto

    kinds = {
        Scheme.INT4: TensorProto.INT4,
        Scheme.INT8: TensorProto.INT8,
        Scheme.FP8: TensorProto.FLOAT8E4M3FN,
    }
    use = weight.use
    scales = onnx_type(use.tensor.torch_dtype)
    return [
        _external(use.name + CODES, kinds[use.scheme], use.codes_shape, weight.codes),
        _external(use.name + SCALES, scales, use.scales_shape, weight.scales),
    ]


def _external(name: str, kind: int, shape: Sequence[int], place: Place) -> Any:
    import onnx

    proto = onnx.TensorProto(
        name=name,
        data_type=kind,
        dims=shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    entries = {"location": place.file, "offset": str(place.offset), "length": str(place.length)}
    for key, value in entries.items():
        proto.external_data.add(key=key, value=value)
    return proto
