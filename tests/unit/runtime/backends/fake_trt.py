"""A TensorRT module and a GPU in host memory, for the bookkeeping of `TrtSession` alone.

The "engine" writes the features behind the context, each row plus one, and answers with the sum of
the valid rows and with the features that are asked for; so it sees which memory it was given, and
how often it really ran. What is faked is the interface as the real module's own tests of it
(`test_trt_api`) say it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.runtime.backends.cuda import Cuda, host_array
from draftrt.signature import DimRange, Signature, TensorSpec

CAPACITY, WIDTH = 12, 3
CACHE = (1, 1, CAPACITY, WIDTH)
TYPES = {"float32": "FLOAT", "int64": "INT64", "bfloat16": "BF16"}


def signature(most: int = 8) -> Signature:
    """Features, a length and some of their rows in, a sum and an echo of those out, one cache."""
    return Signature(
        inputs=(
            TensorSpec(name="features", dtype="float32", shape=(1, "T", WIDTH)),
            TensorSpec(name="length", dtype="int64", shape=(1,)),
            TensorSpec(name="asked", dtype="int64", shape=("S",)),
            TensorSpec(name="past", dtype="float32", shape=CACHE),
        ),
        outputs=(
            TensorSpec(name="total", dtype="float32", shape=(1,)),
            TensorSpec(name="echo", dtype="float32", shape=(1, "S", WIDTH)),
            TensorSpec(name="present", dtype="float32", shape=CACHE, alias="past"),
        ),
        dimensions={
            "T": DimRange(min=1, opt=2, max=most),
            "S": DimRange(min=1, opt=1, max=most),
        },
    )


class FakeCuda(Cuda):
    """Host memory instead of a GPU's; counts what is held and what happened."""

    def __init__(self, *, can_record: bool = True) -> None:
        self.sm, self.name, self.stream = 89, "fake", 7
        self.held: dict[int, Any] = {}
        self.recorded: list[Callable[[], None]] | None = None
        self.recordings: list[Any] = []
        self.can_record = can_record
        self.events: list[str] = []

    def allocate(self, num_bytes: int) -> int:
        memory = ctypes.create_string_buffer(num_bytes)
        self.held[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def allocate_host(self, num_bytes: int) -> int:
        return self.allocate(num_bytes)

    def free(self, address: int) -> None:
        del self.held[address]

    free_host = free

    def to_device(self, target: int, source: int, num_bytes: int) -> None:
        ctypes.memmove(target, source, num_bytes)

    def to_host(self, target: int, source: int, num_bytes: int) -> None:
        self.events.append("fetch")
        ctypes.memmove(target, source, num_bytes)

    def synchronize(self) -> None:
        self.events.append("synchronize")

    def begin_capture(self) -> None:
        self.recorded = []

    def end_capture(self) -> Any:
        recorded, self.recorded = self.recorded, None
        if not self.can_record:
            return None
        self.recordings.append(recorded)
        return recorded

    def launch(self, recorded: Any) -> None:
        self.events.append("launch")
        assert any(recorded is kept for kept in self.recordings), "freed before"
        for step in recorded:
            step()

    def free_recording(self, recorded: Any) -> None:
        self.recordings = [kept for kept in self.recordings if kept is not recorded]

    def close(self) -> None:
        self.stream = 0


class Mode(Enum):
    INPUT = "in"
    OUTPUT = "out"


@dataclass
class Jit:
    """A runtime cache that learns one kernel a shape."""

    kernels: set[bytes] = field(default_factory=set)

    def deserialize(self, content: bytes) -> bool:
        if not content.startswith(b"jit"):
            return False
        self.kernels = set(content.split(b"|")[1:])
        return True

    def serialize(self) -> bytes:
        return b"|".join([b"jit", *sorted(self.kernels)])


class Context:
    """The computation, on whatever memory it was given."""

    def __init__(self, cuda: FakeCuda, table: Signature, jit: Jit | None) -> None:
        self.cuda, self.table, self.jit = cuda, table, jit
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.num_runs = 0
        self.fails = False
        self.interrupts = False

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.cuda.recorded is None, "shapes changed inside a recording"
        self.shapes[name] = shape
        return True

    def infer_shapes(self) -> list[str]:
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (1,) if name == "total" else (1, *self.shapes["asked"], WIDTH)

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == self.cuda.stream
        if self.fails:
            return False
        if self.interrupts:
            raise KeyboardInterrupt
        addresses, shape, asked = (
            dict(self.addresses),
            self.shapes["features"],
            self.shapes["asked"],
        )
        if self.cuda.recorded is not None:
            self.cuda.recorded.append(lambda: self.compute(addresses, shape, asked))
        else:
            self.compute(addresses, shape, asked)
        return True

    def compute(
        self, addresses: dict[str, int], shape: tuple[int, ...], asked: tuple[int, ...]
    ) -> None:
        self.num_runs += 1
        if self.jit is not None:
            self.jit.kernels.add(str(shape).encode())
        features = host_array(addresses["features"], shape, "float32")
        length = int(host_array(addresses["length"], (1,), "int64")[0])
        present = host_array(addresses["present"], CACHE, "float32")
        if addresses["present"] != addresses["past"]:
            present[:] = host_array(addresses["past"], CACHE, "float32")
        present[0, 0, length : length + shape[1]] = features[0] + 1
        total = present[0, 0, : length + shape[1]].sum()
        host_array(addresses["total"], (1,), "float32")[:] = total
        rows = host_array(addresses["asked"], asked, "int64")
        host_array(addresses["echo"], (1, *asked, WIDTH), "float32")[:] = features[:, rows]


class FakeLogger:
    INTERNAL_ERROR, ERROR, WARNING = range(3)


class FakeTrt:
    """The module; plans are any bytes but ``broken``."""

    def __init__(
        self, cuda: FakeCuda, *, in_place: bool = True, has_jit: bool = False, most: int = 8
    ) -> None:
        self.__name__, self.__version__ = "fake_trt", "1.0"
        self.cuda, self.in_place, self.has_jit, self.table = (
            cuda,
            in_place,
            has_jit,
            signature(most),
        )
        self.TensorIOMode, self.DataType = Mode, SimpleNamespace(**{t: t for t in TYPES.values()})
        self.TensorLocation = SimpleNamespace(DEVICE="device", HOST="host")
        self.CudaGraphStrategy = SimpleNamespace(WHOLE_GRAPH_CAPTURE="whole")
        self.context: Context | None = None
        self.config: Any = None
        self.ILogger = FakeLogger
        self.log: Any = None

    def Runtime(self, log: Any) -> Any:  # noqa: N802 - the module's own spelling
        self.log = log

        def deserialise(content: Any) -> Any:
            if bytes(content) == b"broken":
                log.log(self.ILogger.ERROR, "bad magic tag")
                return None
            return self.engine()

        return SimpleNamespace(deserialize_cuda_engine=deserialise)

    def engine(self) -> Any:
        tensors = {t.name: t for t in (*self.table.inputs, *self.table.outputs)}
        names, inputs = list(tensors), {t.name for t in self.table.inputs}
        engine = SimpleNamespace(
            num_io_tensors=len(names),
            get_tensor_name=names.__getitem__,
            get_tensor_mode=lambda name: Mode.INPUT if name in inputs else Mode.OUTPUT,
            get_tensor_dtype=lambda name: TYPES[tensors[name].dtype],
            get_tensor_location=lambda name: "device",
            get_tensor_profile_shape=lambda name, profile: [
                self.shape(name, which) for which in ("min", "opt", "max")
            ],
            create_execution_context=self.make_context,
        )
        if self.in_place:
            engine.get_aliased_input_tensor = lambda name: tensors[name].alias
        if self.has_jit:
            engine.create_runtime_config = self.make_config
        return engine

    def shape(self, name: str, which: str) -> tuple[int, ...]:
        """The smallest, best or largest shape of an input."""
        spans = self.table.dimensions
        sizes = self.table.input(name).shape
        return tuple(getattr(spans[s], which) if isinstance(s, str) else s for s in sizes)

    def make_config(self) -> Any:
        self.config = SimpleNamespace(cuda_graph_strategy="off", cache=None)
        self.config.create_runtime_cache = Jit
        self.config.set_runtime_cache = lambda cache: setattr(self.config, "cache", cache)
        return self.config

    def make_context(self, config: Any = None) -> Context:
        self.context = Context(self.cuda, self.table, config.cache if config else None)
        return self.context


def reference(rounds: list[tuple[int, NDArray[np.float32]]]) -> list[float]:
    """What the engine answers over calls with these lengths and features, from empty caches."""
    rows, totals = np.zeros((CAPACITY, WIDTH), np.float32), []
    for length, features in rounds:
        rows[length : length + features.shape[1]] = features[0] + 1
        totals.append(float(rows[: length + features.shape[1]].sum()))
    return totals


def plan_file(folder: Path, content: bytes = b"plan") -> Path:
    """Write a plan."""
    path = folder / "draft.plan"
    path.write_bytes(content)
    return path
