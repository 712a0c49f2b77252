"""From a plan file to an engine and its execution context, for TensorRT-RTX and TensorRT >= 10.3.

Both modules have one programming interface; where one has more, that is asked of the object at
hand, never of a version number. Knows what is bound, not what it means.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from draftrt.dtypes import BY_NAME
from draftrt.errors import BackendError, BundleError
from draftrt.files import write_atomically
from draftrt.runtime.backends.base import fed_signature
from draftrt.signature import DimRange, Signature, TensorSpec

KEPT_LINES = 4

_logger = logging.getLogger("draftrt.tensorrt")


class Engine:
    """A deserialised plan.

    Attributes:
        signature: the graph's table with the sizes that the plan was built for.
        is_in_place: whether the plan writes its caches where it reads them.
        captures_itself: whether its context turns calls into CUDA graphs on its own.
    """

    def __init__(
        self, module: ModuleType, plan: Path, signature: Signature, weights: Path | None = None
    ) -> None:
        """Load a plan.

        Args:
            module: ``tensorrt_rtx`` or ``tensorrt``.
            plan: the file.
            signature: the table of the graph it was built from.
            weights: for a plan without weights, the ONNX file that has them.

        Raises:
            BackendError: the module does not load it on this GPU; the message ends its log.
            BundleError: its inputs or outputs are not those of the signature.
        """
        self._module = module
        self._plan = plan
        self.log = make_log(module)
        self._runtime = module.Runtime(self.log)
        self._engine = self._deserialise()
        if weights is not None:
            self._refit(weights)
        self._check_tensors(signature)
        self.signature = self._narrowed(signature)
        self.is_in_place = self._aliases_all(signature)
        self.captures_itself = False
        self._config: Any = None
        self._jit: Any = None
        self._jit_file: Path | None = None
        self._jit_saved = b""

    def make_context(self, jit_cache: Path | None) -> Any:
        """Return the engine's execution context.

        Args:
            jit_cache: file of kernels that were compiled on this GPU before; read if it is there
                and still fits. Backends that compile nothing at run time ignore it.

        Raises:
            BackendError: there is not enough memory for it.
        """
        if hasattr(self._engine, "create_runtime_config"):
            config = self._config = self._engine.create_runtime_config()
            if jit_cache is not None and hasattr(config, "create_runtime_cache"):
                self._load_jit(config, jit_cache)
            # A recording holds addresses, and those of caches that are not in place alternate.
            if hasattr(config, "cuda_graph_strategy") and self.is_in_place:
                config.cuda_graph_strategy = self._module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
                self.captures_itself = True
            context = self._engine.create_execution_context(config)
        else:
            context = self._engine.create_execution_context()
        if context is None:
            raise self._refused("makes no execution context for it")
        return context

    def save_jit(self) -> None:
        """Keep the kernels that were compiled so far, if there are new ones."""
        if self._jit is None or self._jit_file is None:
            return
        content = bytes(memoryview(self._jit.serialize()))
        if content == self._jit_saved:
            return
        try:
            write_atomically(self._jit_file, content)
        except OSError as error:
            _logger.warning("compiled kernels are not kept, the next start is slow: %s", error)
        self._jit_saved = content

    def _load_jit(self, config: Any, file: Path) -> None:
        self._jit, self._jit_file = config.create_runtime_cache(), file
        if file.is_file():
            content = file.read_bytes()
            if self._jit.deserialize(content):
                self._jit_saved = content
            else:
                _logger.warning("%s: compiled for another driver or version, made anew", file)
        config.set_runtime_cache(self._jit)

    def _deserialise(self) -> Any:
        with (
            self._plan.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise self._refused("does not load it")
        return engine

    def _refit(self, onnx: Path) -> None:
        refitter = self._module.Refitter(self._engine, self.log)
        parser = self._module.OnnxParserRefitter(refitter, self.log)
        if not parser.refit_from_file(str(onnx)) or not refitter.refit_cuda_engine():
            raise self._refused(f"does not take the weights of {onnx}")

    def _refused(self, what: str) -> BackendError:
        module = self._module
        return BackendError(
            f"{self._plan}: {module.__name__} {module.__version__} {what}: "
            + ("; ".join(self.log.errors) or "it does not say why"),
            hint="build the plan again on or for this GPU, with the installed version",
        )

    def _check_tensors(self, signature: Signature) -> None:
        engine, modes = self._engine, self._module.TensorIOMode
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        for kind, mode, tensors in (
            ("inputs", modes.INPUT, signature.inputs),
            ("outputs", modes.OUTPUT, signature.outputs),
        ):
            found = sorted(name for name in names if engine.get_tensor_mode(name) == mode)
            expected = sorted(tensor.name for tensor in tensors)
            if found != expected:
                raise BundleError(
                    f"{self._plan}: {kind} are {found}, the manifest says {expected}",
                    hint="the plan is of another graph; build it again",
                )
            for tensor in tensors:
                self._check_tensor(tensor)
        for tensor in (*fed_signature(signature).inputs, *fed_signature(signature).outputs):
            if tensor.dtype == "bfloat16":
                raise BackendError(
                    f"{self._plan}: {tensor.name} is bfloat16, for which NumPy has no type",
                    hint="leave the output out, or export with --precision fp16",
                )

    def _check_tensor(self, tensor: TensorSpec) -> None:
        dtype = self._engine.get_tensor_dtype(tensor.name)
        if dtype != getattr(self._module.DataType, BY_NAME[tensor.dtype].tensorrt):
            raise BundleError(
                f"{self._plan}: {tensor.name} is {dtype}, the manifest says {tensor.dtype}",
                hint="the plan is of another graph; build it again",
            )
        if self._engine.get_tensor_location(tensor.name) != self._module.TensorLocation.DEVICE:
            raise BackendError(f"{self._plan}: {tensor.name} does not lie in GPU memory")

    def _narrowed(self, signature: Signature) -> Signature:
        """Replace the ranges of sizes by those the plan was built for."""
        ranges = dict(signature.dimensions)
        for tensor in signature.inputs:
            for axis, size in enumerate(tensor.shape):
                if isinstance(size, str):
                    least, best, most = self._engine.get_tensor_profile_shape(tensor.name, 0)
                    ranges[size] = DimRange(min=least[axis], opt=best[axis], max=most[axis])
        return replace(signature, dimensions=ranges)

    def _aliases_all(self, signature: Signature) -> bool:
        if not hasattr(self._engine, "get_aliased_input_tensor"):
            return False
        pairs = [(t.name, t.alias) for t in signature.outputs if t.alias]
        return all(self._engine.get_aliased_input_tensor(name) == past for name, past in pairs)


def make_log(module: ModuleType) -> Any:
    """Return a TensorRT logger that keeps the last errors and passes warnings on."""

    class Log(module.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=KEPT_LINES)

        def log(self, severity: Any, message: str) -> None:
            if severity in (module.ILogger.INTERNAL_ERROR, module.ILogger.ERROR):
                self.errors.append(message)
            elif severity == module.ILogger.WARNING:
                _logger.warning("%s", message)

    return Log()


def sizes_of(signature: Signature, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return each symbolic size under the shapes of the inputs, which come in graph order."""
    return {
        size: length
        for tensor, shape in zip(signature.inputs, shapes, strict=True)
        for size, length in zip(tensor.shape, shape, strict=True)
        if isinstance(size, str)
    }


def shape_of(tensor: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """Return a tensor's shape under the given symbolic sizes."""
    return tuple(sizes[size] if isinstance(size, str) else size for size in tensor.shape)
