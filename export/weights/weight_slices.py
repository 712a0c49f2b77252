"""The bytes of a weight as its graph holds it: how many, whether they are there, converted."""

from __future__ import annotations

from collections.abc import Iterator

from draftrt.export.weights.tensors import GraphTensor

SLICE_BYTES = 1 << 22
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


def converted(tensor: GraphTensor) -> Iterator[memoryview]:
    """Yield the content in the graph's element type, a slice of rows at a time.

    A slice is valid until the next one is asked for: all lie in one buffer, for an allocator keeps
    what is given back to it again and again.

    Raises:
        ExportError: a 16-bit element type does not hold a number of the weight.
    """
    import torch

    from draftrt.export.weights.overflow import check_held

    source, rows = tensor.source, tensor.shape[0] if tensor.shape else 1
    width = max(1, source.num_bytes // max(rows, 1))
    step = min(rows, max(1, SLICE_BYTES // width))
    buffer = torch.empty((step, *tensor.shape[1:]), dtype=tensor.torch_dtype)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        content = source.rows(start, stop).read()
        part = buffer[: stop - start].copy_(content)
        check_held(tensor.name, content, part, tensor.dtype)
        yield part.reshape(-1).view(torch.uint8).numpy().data
