"""CUDA memory, one stream and its graphs: what a TensorRT session needs, every call checked.

Works on addresses; the arrays in pinned host memory are views that the caller keeps. Knows no
tensor names. Needs the package cuda-bindings, and no CUDA toolkit.

Memory for the tensors of a TensorRT session: device buffers that grow, pinned ones beside them.

Caches are device buffers alone: they never leave the GPU.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import import_package
from draftrt.dtypes import BY_NAME
from draftrt.errors import BackendError


class Cuda:
    """A GPU with one stream, on which everything happens in order.

    Attributes:
        sm: its compute capability, as 86, 89, 120.
        name: what its driver calls it.
        stream: handle of the stream.
    """

    def __init__(self, device: int = 0, *, extra: str = "rtx") -> None:
        """Take a GPU into use.

        Args:
            device: its index.
            extra: of draftrt, that brings cuda-bindings and what needs it.

        Raises:
            BackendError: cuda-bindings is missing, or there is no usable GPU.
        """
        self._api = import_package("cuda.bindings.runtime", what="a TensorRT session", extra=extra)
        count = _ask(self._api, "cudaGetDeviceCount")
        if device >= count:
            raise BackendError(f"got GPU {device}, expected one of the {count} that are here")
        self._call("cudaSetDevice", device)
        self._call("cudaFree", 0)  # makes the context, which loading a JIT cache needs
        attributes = self._api.cudaDeviceAttr
        major = self._call(
            "cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMajor, device
        )
        minor = self._call(
            "cudaDeviceGetAttribute", attributes.cudaDevAttrComputeCapabilityMinor, device
        )
        self.sm = 10 * int(major) + int(minor)
        properties = self._call("cudaGetDeviceProperties", device)
        self.name = properties.name.decode().rstrip("\0")
        self._stream = self._call("cudaStreamCreateWithFlags", self._api.cudaStreamNonBlocking)
        self.stream = int(self._stream)

    def allocate(self, num_bytes: int) -> int:
        """Return the address of zeroed device memory."""
        address = int(self._call("cudaMalloc", num_bytes))
        self._call("cudaMemsetAsync", address, 0, num_bytes, self._stream)
        return address

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def allocate_host(self, num_bytes: int) -> int:
        """Return the address of pinned host memory, which the GPU copies to and from by itself."""
        return int(self._call("cudaMallocHost", num_bytes))

    def free_host(self, address: int) -> None:
        """Free pinned host memory."""
        self._call("cudaFreeHost", address)

    def to_device(self, target: int, source: int, num_bytes: int) -> None:
        """Copy from pinned host memory; returns before it is done."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", target, source, num_bytes, kind, self._stream)

    def to_host(self, target: int, source: int, num_bytes: int) -> None:
        """Copy to pinned host memory; returns before it is done."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", target, source, num_bytes, kind, self._stream)

    def synchronize(self) -> None:
        """Wait until everything on the stream is done.

        Raises:
            BackendError: something on it failed.
        """
        self._call("cudaStreamSynchronize", self._stream)

    def begin_capture(self) -> None:
        """Record what follows on the stream instead of running it."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self._stream, mode)

    def end_capture(self) -> Any:
        """Return what was recorded, ready to `launch`; None where it could not be recorded."""
        status, graph = self._api.cudaStreamEndCapture(self._stream)
        if int(status):
            self._api.cudaGetLastError()  # or the next call would report it
            return None
        recorded = self._call("cudaGraphInstantiate", graph, 0)
        self._call("cudaGraphDestroy", graph)
        return recorded

    def launch(self, recorded: Any) -> None:
        """Run a recording on the stream; returns before it is done."""
        self._call("cudaGraphLaunch", recorded, self._stream)

    def free_recording(self, recorded: Any) -> None:
        """Free a recording."""
        self._call("cudaGraphExecDestroy", recorded)

    def close(self) -> None:
        """Free the stream; calling it twice is harmless."""
        if self.stream:
            self._call("cudaStreamDestroy", self._stream)
            self.stream = 0

    def _call(self, name: str, *arguments: Any) -> Any:
        return _call(self._api, name, *arguments)


def host_array(address: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return host memory as an array; it is valid until the memory is freed."""
    kind = np.dtype(dtype)
    num_bytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_char * num_bytes).from_address(address)
    array: NDArray[Any] = np.frombuffer(memoryview(memory).cast("B"), kind).reshape(shape)
    return array


def _ask(api: ModuleType, name: str) -> int:
    try:
        return int(_call(api, name))
    except BackendError as error:
        raise BackendError(
            f"no usable NVIDIA GPU: {error.message}",
            hint="TensorRT plans run on a machine with an NVIDIA GPU and its driver; elsewhere use "
            "the onnxruntime backend",
        ) from error


def _call(api: ModuleType, name: str, *arguments: Any) -> Any:
    status, *values = getattr(api, name)(*arguments)
    if int(status):
        _, text = api.cudaGetErrorString(status)
        raise BackendError(f"{name} failed with status {int(status)}: {text.decode()}")
    return values[0] if values else None


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
