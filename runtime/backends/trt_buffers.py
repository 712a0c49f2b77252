"""Memory for the tensors of a TensorRT session: device buffers that grow, pinned ones beside them.

Caches are device buffers alone: they never leave the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.dtypes import BY_NAME
from draftrt.runtime.backends.cuda import Cuda, host_array


@dataclass(slots=True)
class Buffer:
    """One piece of memory: address and size."""

    address: int
    num_bytes: int


class Buffers:
    """Named buffers on the device, with pinned host memory for those that are fed or fetched."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._device: dict[str, Buffer] = {}
        self._host: dict[str, Buffer] = {}

    def device(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        """Return the address of device memory for a tensor; it moves only when it has to grow."""
        needed = num_bytes(shape, dtype)
        held = self._device.get(name)
        if held is None or held.num_bytes < needed:
            if held is not None:
                self._cuda.free(held.address)
                needed = max(needed, 2 * held.num_bytes)
            held = self._device[name] = Buffer(self._cuda.allocate(needed), needed)
        return held.address

    def push(self, name: str, array: NDArray[Any]) -> None:
        """Copy an array into a tensor's device memory; returns before it is done."""
        staging = self._staging(name, array.nbytes)
        np.copyto(host_array(staging, array.shape, str(array.dtype)), array)
        self._cuda.to_device(self._device[name].address, staging, array.nbytes)

    def pull(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Copy a tensor to the host; the array holds it once the stream is synchronised.

        It is a view of memory that the next call overwrites.
        """
        size = num_bytes(shape, dtype)
        staging = self._staging(name, size)
        self._cuda.to_host(staging, self._device[name].address, size)
        return host_array(staging, shape, dtype)

    def close(self) -> None:
        """Free everything."""
        for buffer in self._device.values():
            self._cuda.free(buffer.address)
        for buffer in self._host.values():
            self._cuda.free_host(buffer.address)
        self._device.clear()
        self._host.clear()

    def _staging(self, name: str, needed: int) -> int:
        held = self._host.get(name)
        if held is None or held.num_bytes < needed:
            if held is not None:
                self._cuda.free_host(held.address)
                needed = max(needed, 2 * held.num_bytes)
            held = self._host[name] = Buffer(self._cuda.allocate_host(needed), needed)
        return held.address


def num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the size of a tensor."""
    return BY_NAME[dtype].itemsize * math.prod(shape)
