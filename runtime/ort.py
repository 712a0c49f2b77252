"""Graphs on ONNX Runtime: pre-bound buffers, caches updated in place.

Each cache is one buffer that is bound as input and as output, so the graph's TensorScatter writes
into it without a copy. Does not know what the graph computes.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import BackendError, BundleError
from draftrt.runtime.backend import Arrays, cache_specs, fed_signature
from draftrt.signature import Signature, TensorSpec, check_feeds

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OrtSession:
    """A graph on one ONNX Runtime execution provider.

    One session holds one set of caches and is not for use by several threads at once.

    Attributes:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(
        self, model: Path, signature: Signature, *, device: str = "cpu", threads: int = 1
    ) -> None:
        """Load a graph and bind its caches and the outputs of fixed size.

        Args:
            model: the ONNX file, its external data beside it.
            signature: its table, as the manifest has it.
            device: where it runs, a key of `PROVIDERS`.
            threads: threads of an operator. They never spin: two sessions that do so cost each
                other a factor of three.

        Raises:
            BackendError: onnxruntime is missing, has no such provider here, or refuses the graph.
            BundleError: the file's inputs or outputs are not those of the signature.
        """
        runtime = _import_onnxruntime()
        _check_device(signature, device)
        self.device = device
        self._signature = signature
        self._fed = fed_signature(signature)
        self._session = _load(runtime, model, PROVIDERS.get(device, ""), threads)
        _check_names(self._session, signature, model)
        self._caches: dict[str, Any] = {}
        self._results: dict[str, NDArray[Any]] = {}
        self._binding: Any = self._session.io_binding()
        self._bind(runtime)

    @property
    def signature(self) -> Signature:
        """The graph's whole table, caches included."""
        return self._signature

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run the graph once; see `draftrt.runtime.backend.GraphSession.run`."""
        if self._session is None:
            raise BackendError("the session is closed", hint="open the bundle again")
        check_feeds(self._fed, feeds)
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for tensor in self._fed.outputs:
            if tensor.name not in self._results:  # an output bound once would keep its first size
                self._binding.bind_output(tensor.name, "cpu")
        self._session.run_with_iobinding(self._binding)
        return self._collect()

    def cache_address(self, name: str) -> int:
        """Return the address of a cache's buffer, the same before and after every run."""
        return int(self._caches[name].data_ptr())

    def close(self) -> None:
        """Free the graph and its caches."""
        self._binding = self._session = None
        self._caches.clear()
        self._results.clear()

    def __enter__(self) -> OrtSession:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()

    def _bind(self, runtime: ModuleType) -> None:
        for tensor in cache_specs(self._signature):
            zeros = np.zeros([int(size) for size in tensor.shape], tensor.dtype)
            cache = runtime.OrtValue.ortvalue_from_numpy(zeros, self.device, 0)
            self._caches[tensor.name] = cache
            self._binding.bind_ortvalue_input(tensor.name, cache)
        for tensor in self._signature.outputs:
            if tensor.alias:
                self._binding.bind_ortvalue_output(tensor.name, self._caches[tensor.alias])
            elif all(isinstance(size, int) for size in tensor.shape):
                self._results[tensor.name] = result = _buffer(tensor)
                self._binding.bind_ortvalue_output(
                    tensor.name, runtime.OrtValue.ortvalue_from_numpy(result, "cpu", 0)
                )
            else:
                self._binding.bind_output(tensor.name, "cpu")

    def _collect(self) -> dict[str, NDArray[Any]]:
        outputs = {name: result.copy() for name, result in self._results.items()}
        if len(outputs) < len(self._fed.outputs):
            # In the order they were first bound in, which is not always the graph's.
            values = dict(
                zip(self._signature.output_names(), self._binding.get_outputs(), strict=True)
            )
            outputs |= {
                tensor.name: values[tensor.name].numpy()
                for tensor in self._fed.outputs
                if tensor.name not in outputs
            }
        return outputs


def _buffer(tensor: TensorSpec) -> NDArray[Any]:
    return np.zeros([int(size) for size in tensor.shape], tensor.dtype)


def _import_onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(
            f"the onnxruntime backend needs the onnxruntime package: {error}",
            hint="pip install 'draftrt[ort]'",
        ) from error
    module: ModuleType = onnxruntime
    return module


def _check_device(signature: Signature, device: str) -> None:
    if device not in PROVIDERS:
        raise BackendError(f"no device {device!r} on ONNX Runtime, there is {sorted(PROVIDERS)}")
    brain = [t.name for t in (*signature.inputs, *signature.outputs) if t.dtype == "bfloat16"]
    if brain:
        raise BackendError(
            f"ONNX Runtime cannot run this graph here: {brain[0]} is bfloat16, for "
            "which it has no kernels on the CPU and NumPy has no type",
            hint="export with --precision fp32 or fp16, or build a TensorRT plan",
        )


def _load(runtime: ModuleType, model: Path, provider: str, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not model.is_file():
        raise BackendError(f"{model}: no such file")
    errors = runtime.capi.onnxruntime_pybind11_state
    try:
        session = runtime.InferenceSession(str(model), options, providers=[provider])
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise BackendError(
            f"{model}: ONNX Runtime {runtime.__version__} refuses it: {error}",
            hint="graphs of profile 'fixed' need onnxruntime 1.25 or later",
        ) from error
    # The list of available providers names CUDA on machines without a GPU; the session does not.
    if provider not in session.get_providers():
        raise BackendError(
            f"ONNX Runtime {runtime.__version__} runs on {session.get_providers()}, "
            f"asked for {provider}",
            hint="install draftrt[ort-gpu] on a machine with a GPU and its driver, "
            "or run on the CPU",
        )
    return session


def _check_names(session: Any, signature: Signature, model: Path) -> None:
    for kind, found, expected in (
        ("inputs", session.get_inputs(), signature.inputs),
        ("outputs", session.get_outputs(), signature.outputs),
    ):
        names = [node.name for node in found]
        if names != [tensor.name for tensor in expected]:
            raise BundleError(
                f"{model}: {kind} are {names}, the manifest says "
                f"{[tensor.name for tensor in expected]}",
                hint="the graph was replaced after the export; export it again",
            )
