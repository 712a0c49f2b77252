"""A written ONNX file: what a checker says of it, and its weights against the checkpoint's.

The weights of a written graph against the checkpoint's: all of what is linked, rows of copies.

A weight that lies in the checkpoint's own bytes is compared by its place. Of one that was copied or
converted rows are compared: the first, the last, and between them as many as there are
`ROW_EVERY` bytes, so that each slice that was written is seen several times.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from draftrt.dtypes import BY_NAME
from draftrt.errors import ExportError
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.edit import place_of
from draftrt.export.graph.files import read_initialisers
from draftrt.export.weights.data_file import is_linkable, num_bytes
from draftrt.export.weights.quantized import SLICE_ELEMENTS, QuantizedRef, encoded
from draftrt.manifest import LINKED
from draftrt.onnx_session import read_onnx
from draftrt.quantization import TABLES
from draftrt.signature import Signature

ROW_EVERY = 1 << 21


def check_weights(path: Path, tensors: Mapping[str, GraphTensor]) -> int:
    """Compare every weight of a written graph with its source.

    Quantised ones are read from this very file; `check_channels` has compared them.

    Returns:
        Weights compared.

    Raises:
        ExportError: lists weights of another type, shape or content.
    """
    graph = read_onnx(path).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    wrong = []
    copied = {n: one for n, one in tensors.items() if not isinstance(one.source, QuantizedRef)}
    for name, tensor in copied.items():
        # A head that is the embedding has no initialiser of its own.
        problem = _problem(path.parent, stored.get(name, stored.get(tensor.name)), tensor)
        if problem:
            wrong.append(f"{name}: {problem}")
    if wrong:
        raise ExportError(
            f"{path.name}: weights that are not the checkpoint's: {'; '.join(wrong[:5])}",
            hint="a defect of draftrt, or the checkpoint was changed meanwhile; export again",
        )
    return len(tensors)


def _problem(folder: Path, stored: Any, tensor: GraphTensor) -> str:
    from onnx import TensorProto, numpy_helper

    if stored is None:
        return "is missing"
    if stored.data_type != BY_NAME[tensor.dtype].onnx:
        return f"has type {TensorProto.DataType.Name(stored.data_type)}, expected {tensor.dtype}"
    if tuple(stored.dims) != tuple(tensor.shape):
        return f"has shape {list(stored.dims)}, expected {list(tensor.shape)}"
    if not stored.external_data:
        found = numpy_helper.to_array(stored).tobytes()
        wanted = _bytes(tensor, 0, tensor.shape[0] if tensor.shape else 1)
        return "" if found == wanted else "has other content"
    place = place_of(stored)
    file, offset, size = folder / place["location"], int(place["offset"]), num_bytes(tensor)
    if int(place["length"]) != size:
        return f"has {place['length']} bytes, expected {size}"
    source = tensor.source
    if is_linkable(tensor) and source.file is not None and file.samefile(source.file):
        return "" if offset == source.offset else f"lies at {offset}, expected {source.offset}"
    width = size // tensor.shape[0]
    with file.open("rb") as stream, _rows_of(tensor, width) as row_of:
        for row in sampled_rows(tensor.shape[0], width, ROW_EVERY):
            stream.seek(offset + row * width)
            if stream.read(width) != row_of(row):
                return f"row {row} has other content"
    return ""


@contextmanager
def _rows_of(tensor: GraphTensor, width: int) -> Iterator[Callable[[int], bytes]]:
    """Give what returns a row of the source, of ``width`` bytes in the graph's element type."""
    source = tensor.source
    if source.file is None or not is_linkable(tensor):
        yield lambda row: _bytes(tensor, row, row + 1)
        return
    with source.file.open("rb") as stream:

        def read(row: int) -> bytes:
            stream.seek(source.offset + row * width)
            return stream.read(width)

        yield read


def sampled_rows(rows: int, width: int, every: int) -> list[int]:
    """Return the rows of a weight that are compared: first, last and evenly between.

    Args:
        rows: of the weight.
        width: size of a row.
        every: size for which there is a row; there are three at least.
    """
    count = min(rows, max(3, -(-rows * width // every)))
    return sorted({round((rows - 1) * i / max(1, count - 1)) for i in range(count)})


def check_channels(path: Path, tensors: Mapping[str, GraphTensor]) -> int:
    """Quantise output channels of each weight again, some of each slice of it, and compare.

    Args:
        path: a graph with quantised weights.
        tensors: its weights before they were quantised.

    Returns:
        Quantised weights compared.

    Raises:
        ExportError: a channel in the file is not the one of the checkpoint.
    """
    found = [ref for ref in read_initialisers(path).values() if isinstance(ref, QuantizedRef)]
    for ref in found:
        tensor = tensors[ref.name if ref.name in tensors else TABLES[1]]
        rows, width = ref.shape
        chosen = sampled_rows(rows, width, SLICE_ELEMENTS // 2)
        again = torch.cat(
            [encoded(ref.name, tensor, ref.scheme, row, row + 1).dequantized() for row in chosen]
        )
        differs = (ref.exact_channels(chosen) != ref.in_order(again)).any(dim=1)
        if differs.any():
            channel = chosen[int(differs.nonzero()[0])]
            raise ExportError(
                f"{path.name}: channel {channel} of {ref.name} is not the checkpoint's",
                hint="a defect of draftrt, or the checkpoint was changed meanwhile; export again",
            )
    return len(found)


def _bytes(tensor: GraphTensor, start: int, stop: int) -> bytes:
    source = tensor.source.rows(start, stop) if tensor.shape else tensor.source
    content = source.read().to(tensor.torch_dtype).contiguous()
    return content.reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def checkable(path: Path) -> Iterator[Path]:
    """Give an ONNX file for the ONNX checker: itself, or over stand-ins for linked data.

    The checker looks at the names, types, shapes and sizes of external data and never at its
    contents; it refuses hard links. A stand-in is an empty file of the same size.
    """
    folder = path.parent
    if not (folder / LINKED).is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".check-") as name:
        scratch = Path(name)
        shutil.copyfile(path, scratch / path.name)
        (scratch / LINKED).mkdir()
        for file in (*folder.glob("*.data"), *(folder / LINKED).iterdir()):
            place = scratch / file.relative_to(folder)
            with place.open("wb") as stream:
                stream.truncate(file.stat().st_size)
        yield scratch / path.name


def check_file(path: Path, signature: Signature) -> None:
    """Run the ONNX checker in full and compare the file's inputs and outputs with the signature.

    Raises:
        ExportError: the file is invalid or its names, order or shapes are not the signature's.
    """
    import onnx

    try:
        with checkable(path) as file:
            onnx.checker.check_model(str(file), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{path.name} is not valid ONNX: {error!s:.400}") from error
    graph = read_onnx(path).graph
    for kind, values, specs in (
        ("inputs", graph.input, signature.inputs),
        ("outputs", graph.output, signature.outputs),
    ):
        got = [value.name for value in values]
        if got != [spec.name for spec in specs]:
            raise ExportError(
                f"{path.name} {kind}: got {got}, expected {[spec.name for spec in specs]}"
            )
        for value, spec in zip(values, specs, strict=True):
            dims = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in value.type.tensor_type.shape.dim
            ]
            if len(dims) != len(spec.shape) or any(
                isinstance(want, int) and want != have
                for want, have in zip(spec.shape, dims, strict=True)
            ):
                raise ExportError(
                    f"{path.name} {kind}: {spec.name} has shape {dims}, expected {list(spec.shape)}"
                )
