"""A graph to ONNX files, and the weights of such a file as unread tensors, quantised ones too.

A graph and the places of its weights to ONNX files.

Weights lie in files beside the graph; tensors of at most 1 KB stay inside the ONNX file.

The weights of an ONNX file as unread tensors under their checkpoint names.

A quantised weight is there as what its integers stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftrt.bundle_files import name_problem, place_problem
from draftrt.dtypes import BY_NAME, FLOATS
from draftrt.errors import BundleError, ExportError
from draftrt.export.checkpoint.quantized.linear import StoredRef
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef, from_tensor
from draftrt.export.graph.attention import group_attention
from draftrt.export.graph.edit import place_of, put_place
from draftrt.export.graph.quantize import look_up_codes
from draftrt.export.tracing.recorder import onnx_type
from draftrt.export.weights.kept import order_of
from draftrt.export.weights.overflow import check_held
from draftrt.export.weights.quantized import QuantizedRef, RequantizedRef
from draftrt.export.weights.storage import ByteRange, QuantizedWeight
from draftrt.export.weights.tensors import BASES, CODES, ORDER, SCALES, base_dtype
from draftrt.onnx_session import read_onnx
from draftrt.quantization import HEAD, TABLES, Scheme


def write_graph(
    model: Any,
    tensors: Mapping[str, GraphTensor],
    places: Mapping[str, ByteRange],
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


def external(tensor: GraphTensor, place: ByteRange) -> Any:
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
    made = [
        _external(use.name + CODES, kinds[use.scheme], use.codes_shape, weight.codes),
        _external(use.name + SCALES, scales, use.scales_shape, weight.scales),
    ]
    if weight.base is not None:
        kind = BY_NAME[base_dtype(use.tensor)].onnx
        name = f"{use.name}.{use.base.value}"
        made.append(_external(name, kind, use.base_shape, weight.base))
    if use.tensor.kept is not None and use.tensor.kept.is_ordered:
        made.append(_order(use.name + ORDER, use.tensor.source))
    return made


def _order(name: str, source: TensorRef) -> Any:
    """Return the order in which a product gathers its inputs, of a checkpoint or of a file."""
    import onnx

    if isinstance(source, QuantizedRef):
        assert source.order is not None
        content = source.order.read().numpy()
    else:
        assert isinstance(source, StoredRef)
        found = order_of(source)
        assert found is not None
        content = found
    return onnx.numpy_helper.from_array(content, name)


def _external(name: str, kind: int, shape: Sequence[int], place: ByteRange) -> Any:
    import onnx

    proto = onnx.TensorProto(name=name, data_type=kind, dims=shape)
    put_place(proto, {"location": place.file, "offset": place.offset, "length": place.length})
    return proto


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
            made = _quantised_ref(tensor, name, scales, schemes[tensor.data_type], path)
            made = replace(made, order=refs.pop(name + ORDER, None))
            for ending, base in BASES.items():
                if name + ending in refs:
                    made = replace(made, base=refs.pop(name + ending), base_kind=base)
            refs[name] = made
    return refs


def load_whole(path: Path) -> Any:
    """Return an ONNX file with its external data, linked or not, as ``onnx.ModelProto``."""
    import onnx

    model = read_onnx(path)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            file, offset = _place(tensor, path)
            length = int(place_of(tensor)["length"])
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


def _quantised_ref(
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
    place = place_of(tensor)
    try:
        location, offset = str(place["location"]), int(place.get("offset", "0"))
    except (KeyError, ValueError) as error:
        raise BundleError(f"{path}: {tensor.name} lies nowhere: {place}", hint=DAMAGED) from error
    if problem := name_problem(location) or place_problem(path.parent, location):
        raise BundleError(
            f"{path}: {tensor.name}: its file {location!r:.80}: {problem}", hint=DAMAGED
        )
    return path.parent / location, offset


def requantized(path: Path, tensors: Mapping[str, GraphTensor]) -> dict[str, GraphTensor]:
    """Return the tensors with those quantised that a graph holds quantised.

    Args:
        path: ONNX file of the graph.
        tensors: weights of a checkpoint by their names in the graph.
    """
    found = dict(tensors)
    for name, stored in read_initialisers(path).items():
        is_kept = name in tensors and isinstance(tensors[name].source, StoredRef)
        if isinstance(stored, QuantizedRef) and name in tensors and not is_kept:
            one = tensors[name]
            ref = RequantizedRef(name, one.dtype, one.shape, source=one.source, stored=stored)
            found[name] = GraphTensor(name, one.shape, one.dtype, ref)
    return found
