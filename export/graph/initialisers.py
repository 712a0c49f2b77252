"""The weights of an ONNX file as unread tensors under their checkpoint names.

A quantised weight is there as what its integers stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftrt.bundle_files import name_problem, place_problem
from draftrt.dtypes import BY_NAME, FLOATS
from draftrt.errors import BundleError
from draftrt.export.checkpoint.tensors import TensorRef, from_tensor
from draftrt.export.graph.quantize import CODES, SCALES
from draftrt.export.weights.quantized import QuantizedRef
from draftrt.export.weights.tensors import GraphTensor
from draftrt.onnx_file import read_onnx
from draftrt.quantization import HEAD, TABLES, Scheme

DAMAGED = "the file may be damaged: restore it, or export again"


def read_initialisers(path: Path) -> dict[str, TensorRef]:
    """Return every float and int64 initialiser of a graph, its external data unread, by name."""
    from onnx import TensorProto

    kinds = {BY_NAME[name].onnx: name for name in (*FLOATS, "int64")}
    schemes = {
        TensorProto.INT4: Scheme.INT4,
        TensorProto.INT8: Scheme.INT8,
        TensorProto.FLOAT8E4M3FN: Scheme.FP8,
    }
    found = read_onnx(path).graph.initializer
    refs = {
        tensor.name: _ref(tensor, kinds[tensor.data_type], path)
        for tensor in found
        if tensor.data_type in kinds
    }
    for tensor in found:
        if tensor.data_type in schemes and tensor.name.endswith(CODES):
            name = tensor.name.removesuffix(CODES)
            scales = refs.pop(name + SCALES, None)
            if scales is None:
                raise BundleError(f"{path}: {name} has codes and no scales", hint=DAMAGED)
            if name == TABLES[1] and name in refs:  # looked up quantised, multiplied with as it is
                refs.setdefault(HEAD, refs[name])
            refs[name] = _quantised(tensor, name, scales, schemes[tensor.data_type], path)
    return refs


def load_whole(path: Path) -> Any:
    """Return an ONNX file with its external data, linked or not, as ``onnx.ModelProto``."""
    import onnx

    model = read_onnx(path)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            file, offset = _place(tensor, path)
            length = next(int(item.value) for item in tensor.external_data if item.key == "length")
            with file.open("rb") as stream:
                stream.seek(offset)
                tensor.raw_data = stream.read(length)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    return model


def as_stored(path: Path, tensors: Mapping[str, GraphTensor]) -> dict[str, GraphTensor]:
    """Return the tensors with every quantised one as the file holds it.

    A head that was quantised apart from the table it shares is there under its own name; so is one
    that still is that table where the lookup alone was quantised.
    """
    stored = {
        name: ref for name, ref in read_initialisers(path).items() if isinstance(ref, QuantizedRef)
    }
    apart = {}
    if TABLES[1] in stored and HEAD not in tensors:
        apart[HEAD] = tensors[TABLES[1]]
    return (
        dict(tensors)
        | apart
        | {name: GraphTensor(name, ref.shape, ref.dtype, ref) for name, ref in stored.items()}
    )


def _ref(tensor: Any, dtype: str, path: Path) -> TensorRef:
    from onnx import TensorProto, numpy_helper

    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset = _place(tensor, path)
        return TensorRef(tensor.name, dtype, tuple(tensor.dims), file, offset)
    array = numpy_helper.to_array(tensor)
    content = (
        torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
        if dtype == "bfloat16"
        else torch.from_numpy(array.copy())
    )
    return from_tensor(tensor.name, content)


def _quantised(
    tensor: Any, name: str, scales: TensorRef, scheme: Scheme, path: Path
) -> QuantizedRef:
    file, offset = _place(tensor, path)
    is_product = name not in TABLES
    shape = tuple(tensor.dims)
    return QuantizedRef(
        name,
        scales.dtype,
        shape[::-1] if is_product else shape,
        file,
        offset,
        scheme=scheme,
        scales=replace(scales, name=name + SCALES),
        is_product=is_product,
    )


def _place(tensor: Any, path: Path) -> tuple[Path, int]:
    place = {item.key: item.value for item in tensor.external_data}
    try:
        location, offset = str(place["location"]), int(place.get("offset", "0"))
    except (KeyError, ValueError) as error:
        raise BundleError(f"{path}: {tensor.name} lies nowhere: {place}", hint=DAMAGED) from error
    if problem := name_problem(location) or place_problem(path.parent, location):
        raise BundleError(
            f"{path}: {tensor.name}: its file {location!r:.80}: {problem}", hint=DAMAGED
        )
    return path.parent / location, offset
