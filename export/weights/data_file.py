"""A data file that is hashed, and on its way to the disk, while it is written.

Bytes that stay as they are go from file to file within the kernel. All steps are large, so that the
thread that takes them seldom asks for the interpreter: another one may be busy in it, importing
PyTorch.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from draftrt.errors import CheckpointError
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.files import start_writeback
from draftrt.lifecycle import Closing
from draftrt.manifest import FileEntry

WINDOW_BYTES = 1 << 25
BUFFER_BYTES = 1 << 22  # where the kernel does not copy
NO_KERNEL_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
OnBytes = Callable[[int], None]


class DataFile(Closing):
    """A new file, written from its beginning to its end; a context manager."""

    def __init__(self, path: Path, on_bytes: OnBytes = lambda count: None) -> None:
        """Open a file.

        Args:
            path: of the file; one that is there is replaced.
            on_bytes: called with the number of bytes after each step; may raise to end it all.
        """
        self._path = path
        self._on_bytes = on_bytes
        self._digest = hashlib.sha256()
        self._stream = path.open("wb", buffering=0)
        self._end = 0

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._stream.close()

    def fill(self, offset: int) -> None:
        """Write zeros up to an offset."""
        self.write(memoryview(bytes(offset - self._end)))

    def write(self, content: memoryview) -> None:
        """Write bytes."""
        left = content
        while left:
            left = left[self._stream.write(left) or 0 :]
        self._digest.update(content)
        self._step(len(content))

    def copy(self, source: Path, start: int, count: int) -> None:
        """Write ``count`` bytes of another file, from its byte ``start`` on.

        Raises:
            CheckpointError: the other file has become shorter.
        """
        with source.open("rb", buffering=0) as stream:
            for offset in range(start, start + count, WINDOW_BYTES):
                size = min(WINDOW_BYTES, start + count - offset)
                copied = copy_range(stream.fileno(), self._stream.fileno(), offset, size)
                if copied < size:
                    raise _shortened(source, start + count)
                self._step(size)
                for written in mapped(self._path, self._end - size, size):
                    self._digest.update(written)

    def finish(self) -> FileEntry:
        """Return size and hash; the disk may not have all of it yet."""
        return FileEntry(bytes=self._end, sha256=self._digest.hexdigest())

    def _step(self, count: int) -> None:
        self._end += count
        start_writeback(self._stream, count)
        self._on_bytes(count)


def copy_range(source: int, target: int, offset: int, count: int) -> int:
    """Append bytes of one open file to another; by the kernel where it can.

    Args:
        source: descriptor of the file to read.
        target: descriptor of the file to write, at its end.
        offset: first byte to read.
        count: number of bytes.

    Returns:
        Number of bytes copied; fewer where the source ends.
    """
    copied, by_kernel = 0, hasattr(os, "copy_file_range")
    while copied < count:
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, count - copied, offset + copied)
            except OSError as error:
                if error.errno not in NO_KERNEL_COPY:
                    raise
                by_kernel = False
                continue
        else:
            piece = os.pread(source, min(count - copied, BUFFER_BYTES), offset + copied)
            done = os.write(target, piece) if piece else 0
        if not done:
            break
        copied += done
    return copied


def mapped(file: Path, start: int, count: int) -> Iterator[memoryview]:
    """Yield so many bytes of a file, a window at a time.

    Raises:
        CheckpointError: the file has become shorter.
    """
    for offset in range(start, start + count, WINDOW_BYTES):
        size = min(WINDOW_BYTES, start + count - offset)
        try:
            window = np.memmap(file, np.uint8, "r", offset, shape=(size,))
        except ValueError as error:
            raise _shortened(file, start + count) from error
        yield window.data


def _shortened(file: Path, expected: int) -> CheckpointError:
    return CheckpointError(
        f"{file}: has {file.stat().st_size} bytes now, expected {expected} or more",
        hint="it was changed meanwhile; export again",
    )


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
