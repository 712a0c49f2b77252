"""Tensors that are not read yet: where each lies, or how it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftrt.dtypes import BY_NAME
from draftrt.errors import CheckpointError, ExportError
from draftrt.hub.headers import fill
from draftrt.quantization import KeptForm

if TYPE_CHECKING:
    import torch


READ_BYTES = 1 << 22  # up to this a copy is cheaper than the faults of mapped pages


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where a tensor lies, without having read it.

    Attributes:
        name: name in its checkpoint.
        dtype: NumPy-style element type, or the file's own name for one not in `draftrt.dtypes`.
        shape: sizes of the axes.
        file: safetensors file; None for a tensor in memory.
        offset: first byte in the file.
        array: content of a tensor in memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path | None = None
    offset: int = 0
    array: torch.Tensor | None = field(default=None, compare=False)

    @property
    def itemsize(self) -> int:
        """Bytes an element; 0 for a type that is not known."""
        return BY_NAME[self.dtype].itemsize if self.dtype in BY_NAME else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the content."""
        return _count(self.shape) * self.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of it in its checkpoint."""
        return self.num_bytes

    @property
    def files(self) -> tuple[Path, ...]:
        """Where its content lies; empty for a tensor in memory."""
        return () if self.file is None else (self.file,)

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return the tensor's rows ``start`` to ``stop`` along axis 0, still unread."""
        stride = _count(self.shape[1:]) * self.itemsize
        return replace(
            self,
            shape=(stop - start, *self.shape[1:]),
            offset=self.offset + start * stride,
            array=None if self.array is None else self.array[start:stop],
        )

    def read(self) -> torch.Tensor:
        """Return the content; a large file-backed tensor maps the file copy-on-write.

        Raises:
            CheckpointError: the element type is not one that can be read.
        """
        import torch

        if self.array is not None:
            return self.array
        if self.dtype not in BY_NAME or self.file is None:
            raise CheckpointError(f"{self.name}: dtype {self.dtype} cannot be read")
        dtype: torch.dtype = getattr(torch, self.dtype)
        if _count(self.shape) == 0:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self._raw(), dtype=dtype).reshape(self.shape)

    def read_integers(self) -> NDArray[np.int64]:
        """Return the content of an integer or bool tensor without PyTorch.

        Raises:
            CheckpointError: the elements are no integers.
        """
        if self.dtype not in ("int64", "int32", "bool"):
            raise CheckpointError(f"{self.name}: got {self.dtype}, expected integers")
        if self.array is not None:
            return self.array.numpy().astype(np.int64)
        return self._raw().view(self.dtype).reshape(self.shape).astype(np.int64)

    def read_bytes(self) -> NDArray[np.uint8]:
        """Return the content as bytes, without PyTorch for a tensor in a file."""
        if self.array is None:
            return self._raw()
        import torch

        content: NDArray[np.uint8] = self.array.contiguous().flatten().view(torch.uint8).numpy()
        return content

    def _raw(self) -> NDArray[np.uint8]:
        assert self.file is not None
        size = self.num_bytes
        fill(self.file, self.offset, size)
        if size > READ_BYTES:
            return np.memmap(self.file, np.uint8, mode="c", offset=self.offset, shape=(size,))
        content = np.fromfile(self.file, np.uint8, size, offset=self.offset)
        if len(content) < size:
            raise CheckpointError(
                f"{self.file}: {self.name!r} ends {size - len(content)} bytes early",
                hint="the file was changed meanwhile; export again",
            )
        return content


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def from_tensor(name: str, tensor: torch.Tensor) -> TensorRef:
    """Return a reference to a tensor in memory."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRef(name, dtype, tuple(tensor.shape), array=tensor)


@dataclass(frozen=True, slots=True)
class ComputedRef(TensorRef):
    """A tensor that is computed each time it is read.

    Attributes:
        compute: returns the content.
    """

    compute: Callable[[], torch.Tensor] | None = field(default=None, compare=False)

    def read(self) -> torch.Tensor:
        """Return the content."""
        assert self.compute is not None
        content = self.compute()
        if tuple(content.shape) != self.shape:
            raise ExportError(
                f"{self.name}: computed {list(content.shape)}, expected {list(self.shape)}",
                hint="a defect of draftrt, please report it",
            )
        return content

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return the rows ``start`` to ``stop`` along axis 0, not computed yet."""
        shape = (stop - start, *self.shape[1:])
        return replace(self, shape=shape, compute=lambda: self.read()[start:stop])


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One initialiser of a graph.

    Attributes:
        name: canonical name, kept in the ONNX file.
        shape: its shape in the graph.
        dtype: element type in the graph, a NumPy-style name.
        source: unread content, already cut to the shape.
        kept: how the graph holds it by its checkpoint's own codes; None where it does not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: TensorRef
    kept: KeptForm | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the graph."""
        return BY_NAME[self.dtype].itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type in the graph, as PyTorch calls it."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def read(self) -> torch.Tensor:
        """Return the content in the graph's element type."""
        return self.source.read().to(self.torch_dtype)
