"""The bytes of a weight as its graph holds it, a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator

from draftrt.errors import CheckpointError
from draftrt.export.graph_tensors import GraphTensor

SLICE_BYTES = 1 << 24
LOOKED_UP = (  # tables of which a call reads some rows
    "embed_tokens.weight",
    "markov_w1.weight",
    "predecessor_codebook.weight",
    "successor_codebook.weight",
    "d2t",
)


def is_read_whole(name: str) -> bool:
    """Return whether a call reads all of a weight, as far as its name tells."""
    return not name.endswith(LOOKED_UP) and not name.startswith("rope.")


def num_bytes(tensor: GraphTensor) -> int:
    """Return the bytes of a tensor in its graph."""
    size = tensor.itemsize
    for length in tensor.shape:
        size *= length
    return size


def is_linkable(tensor: GraphTensor) -> bool:
    """Return whether the checkpoint holds the very bytes that the graph needs."""
    return tensor.source.file is not None and tensor.source.dtype == tensor.dtype


def slices(tensor: GraphTensor) -> Iterator[memoryview]:
    """Yield the content in the graph's element type, a slice at a time.

    A slice is valid until the next one is asked for. PyTorch is loaded only for content that is
    converted or computed.
    """
    yield from _stored(tensor) if is_linkable(tensor) else _converted(tensor)


def _stored(tensor: GraphTensor) -> Iterator[memoryview]:
    assert tensor.source.file is not None
    left, buffer = num_bytes(tensor), memoryview(bytearray(SLICE_BYTES))
    with tensor.source.file.open("rb", buffering=0) as stream:
        stream.seek(tensor.source.offset)
        while left:
            count = stream.readinto(buffer[: min(left, SLICE_BYTES)])
            if not count:
                raise CheckpointError(
                    f"{tensor.source.file}: {tensor.source.name!r} ends {left} bytes early",
                    hint="the file was changed meanwhile; export again",
                )
            yield buffer[:count]
            left -= count


def _converted(tensor: GraphTensor) -> Iterator[memoryview]:
    import torch

    source, rows = tensor.source, tensor.shape[0] if tensor.shape else 1
    width = max(1, source.num_bytes // max(rows, 1))
    step = max(1, SLICE_BYTES // width)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows)).read().to(tensor.torch_dtype)
        yield part.contiguous().reshape(-1).view(torch.uint8).numpy().data
