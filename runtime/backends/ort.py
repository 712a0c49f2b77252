"""Graphs on ONNX Runtime: pre-bound buffers, caches updated in place.

Each cache is one buffer that is bound as input and as output, so the graph's TensorScatter writes
into it without a copy. Each state is two, which change places after every call. Does not know what
the graph computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import BackendError, BundleError, FeedError
from draftrt.lifecycle import Closing
from draftrt.onnx_session import (
    AS_WRITTEN,
    CPU,
    INT8,
    QUANTISED_PRODUCTS,
    WITHOUT_QUANTISED,
    load_onnxruntime,
    open_session,
)
from draftrt.runtime.backends.base import Arrays, check_states, fed_signature
from draftrt.signature import Signature, TensorSpec, cache_specs, check_feeds, state_specs

PROVIDERS = {"cpu": CPU, "cuda": "CUDAExecutionProvider"}
GROWTH_ROWS = 64
SHRINK_AT = 4  # times as many rows as are wanted
MAX_PLANS = 24


class OrtSession(Closing):
    """A graph on one ONNX Runtime execution provider.

    One session holds one set of caches and is not for use by several threads at once. Buffers of
    every combination of sizes are bound once and used again.

    Attributes:
        device: ``cpu`` or ``cuda``.
        cache_rows: rows the caches have at present.
    """

    def __init__(
        self,
        model: Path,
        signature: Signature,
        *,
        device: str = "cpu",
        threads: int = 1,
        can_grow: bool = False,
        maps_weights: bool = False,
        is_exact: bool = False,
        is_dequantised: bool = False,
        content: bytes | None = None,
    ) -> None:
        """Load a graph and make its caches.

        Args:
            model: the ONNX file, its external data beside it.
            signature: its table, as the manifest has it.
            device: where it runs, a key of `PROVIDERS`.
            threads: threads of an operator. They never spin: two sessions that do so cost each
                other a factor of three.
            can_grow: the file leaves the rows of its caches open: start with few, add some as
                they fill, up to the signature's, and begin a much shorter text with few again.
                Attention costs what the cache has, used or not; a copy every so many tokens costs
                far less.
            maps_weights: multiply with the weights where the file is mapped, which sessions over
                one file share, in place of a packed copy, which is faster.
            is_exact: multiply with quantised weights as the graph says, with activations as they
                are, to be compared; it is slower.
            is_dequantised: widen quantised weights when the graph is loaded: of FP8 the CPU has no
                products, and would widen them in every call.
            content: of another graph over the weights of ``model``, which runs in its place.

        Raises:
            BackendError: onnxruntime is missing, has no such provider here, or refuses the graph.
            BundleError: the file's inputs or outputs are not those of the signature.
        """
        self._runtime = load_onnxruntime()
        _check_device(signature, device)
        self.device = device
        self._signature = signature
        self._fed = fed_signature(signature)
        settings = {QUANTISED_PRODUCTS: AS_WRITTEN if is_exact else INT8}
        if is_dequantised:
            settings[WITHOUT_QUANTISED] = "1"
        if maps_weights:
            # Folding would keep a float32 copy of every 16-bit weight: the CPU has no such products
            settings |= {
                "session.disable_prepacking": "1",
                "optimization.disable_specified_optimizers": "ConstantFolding",
            }
        self._session = _load(model, content, PROVIDERS[device], threads, settings)
        _check_names(self._session, signature, model)
        self._specs = cache_specs(signature)
        self._most_rows = int(self._specs[0].shape[2]) if self._specs else 0
        self.cache_rows = 0
        self._can_grow = can_grow
        self._caches: dict[str, Any] = {}
        self._states = {
            tensor.name: [self._zeros(tensor) for _ in range(2)]
            for tensor in state_specs(signature)
        }
        self._turn = 0  # which of the two holds what the last call left
        self._plans: dict[object, _Plan] = {}
        self._reserve(min(1, self._most_rows) if can_grow else self._most_rows)

    @property
    def signature(self) -> Signature:
        """The graph's whole table, caches included, at their largest."""
        return self._signature

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Run the graph once; see `draftrt.runtime.backends.base.GraphSession.run`."""
        if self._session is None:
            raise BackendError("the session is closed", hint="open the bundle again")
        sizes = ((name, array.shape, array.dtype) for name, array in feeds.items())
        key = (unwanted, self._turn, *sizes)
        if key not in self._plans:  # feeds like those of a plan need no second check
            check_feeds(self._fed, feeds)
        self._reserve(self._most_rows if rows is None else rows)
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = self._plan(feeds, unwanted)
        for name, buffer in plan.inputs.items():
            np.copyto(buffer, feeds[name])
        self._session.run_with_iobinding(plan.binding)
        if self._states:
            self._turn = 1 - self._turn
        return {name: buffer.copy() for name, buffer in plan.outputs.items()}

    def caches(self) -> dict[str, NDArray[Any]]:
        """Return a copy of every cache, by the name of the output that it is."""
        named = {tensor.alias: tensor.name for tensor in self._signature.outputs if tensor.alias}
        return {named[name]: cache.numpy().copy() for name, cache in self._caches.items()}

    def rows(self, count: int) -> dict[str, NDArray[Any]]:
        """Return copies of the first rows of every cache, by the input's name."""
        return {name: cache.numpy()[:, :, :count].copy() for name, cache in self._caches.items()}

    def put_rows(self, rows: Arrays) -> None:
        """Write the first rows of every cache; see `draftrt.runtime.backends.base.RowSession`."""
        counts = {array.shape[2] for array in rows.values() if array.ndim == 4}
        count = max(counts, default=0)
        expected = {
            spec.name: (*spec.shape[:2], count, spec.shape[3], spec.dtype) for spec in self._specs
        }
        got = {name: (*array.shape, str(array.dtype)) for name, array in rows.items()}
        if got != expected or count > self._most_rows:
            raise FeedError(f"rows of caches: got {got!r:.300}, expected {expected!r:.300}")
        self._reserve(count)
        for name, array in rows.items():
            content = np.zeros_like(self._caches[name].numpy())
            content[:, :, :count] = array
            self._caches[name].update_inplace(content)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the states; see `draftrt.runtime.backends.base.StateSession`."""
        return {name: pair[self._turn].numpy().copy() for name, pair in self._states.items()}

    def restore(self, states: Arrays) -> None:
        """Put the states of a snapshot back."""
        check_states(self._signature, states)
        for name, pair in self._states.items():
            pair[self._turn].update_inplace(np.ascontiguousarray(states[name]))

    def cache_address(self, name: str) -> int:
        """Return the address of a cache's buffer; it changes only when the cache grows."""
        return int(self._caches[name].data_ptr())

    def close(self) -> None:
        """Free the graph and its caches."""
        self._session = None
        self._plans.clear()
        self._caches.clear()
        self._states.clear()

    def _zeros(self, tensor: TensorSpec) -> Any:
        content = np.zeros(tuple(int(size) for size in tensor.shape), tensor.dtype)
        return self._runtime.OrtValue.ortvalue_from_numpy(content, self.device, 0)

    def _reserve(self, rows: int) -> None:
        """Fit the caches to ``rows`` in use; what those hold stays."""
        spare = rows // 16  # so that a long cache is not copied more often than a short one
        wanted = min(-(-(rows + spare) // GROWTH_ROWS) * GROWTH_ROWS, self._most_rows)
        is_far_too_large = self._can_grow and self.cache_rows >= SHRINK_AT * wanted
        if (rows <= self.cache_rows and not is_far_too_large) or wanted == self.cache_rows:
            return
        self._plans.clear()
        self.cache_rows = (
            0  # until all have the new size: an interrupt here makes the next call go on
        )
        for tensor in self._specs:  # one by one, so that no more than one is there twice
            batch, heads, _, width = (int(size) for size in tensor.shape)
            content = np.zeros((batch, heads, wanted, width), tensor.dtype)
            if tensor.name in self._caches:
                held = self._caches[tensor.name].numpy()[:, :, :wanted]
                content[:, :, : held.shape[2]] = held
            value = self._runtime.OrtValue.ortvalue_from_numpy(content, self.device, 0)
            self._caches[tensor.name] = value
        self.cache_rows = wanted

    def _plan(self, feeds: Arrays, unwanted: tuple[str, ...]) -> _Plan:
        sizes: dict[str, int] = {}
        binding = self._session.io_binding()
        plan = _Plan(binding, {}, {})
        for tensor in self._fed.inputs:
            shape = feeds[tensor.name].shape
            sizes |= {s: n for s, n in zip(tensor.shape, shape, strict=True) if isinstance(s, str)}
            plan.inputs[tensor.name] = buffer = np.zeros(shape, tensor.dtype)
            binding.bind_ortvalue_input(tensor.name, self._on_host(buffer))
        for name, cache in self._caches.items():
            binding.bind_ortvalue_input(name, cache)
        for name, pair in self._states.items():
            binding.bind_ortvalue_input(name, pair[self._turn])
        for tensor in self._signature.outputs:
            if tensor.alias:
                binding.bind_ortvalue_output(tensor.name, self._caches[tensor.alias])
            elif tensor.becomes:
                binding.bind_ortvalue_output(
                    tensor.name, self._states[tensor.becomes][1 - self._turn]
                )
            elif tensor.name not in unwanted:
                shape = tuple(sizes[s] if isinstance(s, str) else s for s in tensor.shape)
                plan.outputs[tensor.name] = buffer = np.zeros(shape, tensor.dtype)
                binding.bind_ortvalue_output(tensor.name, self._on_host(buffer))
        return plan

    def _on_host(self, buffer: NDArray[Any]) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(buffer, "cpu", 0)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Buffers bound for one combination of sizes: the arrays are the bound memory itself."""

    binding: Any
    inputs: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[Any]]


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


def _load(
    model: Path, content: bytes | None, provider: str, threads: int, settings: Mapping[str, str]
) -> Any:
    runtime = load_onnxruntime()
    if not model.is_file():
        raise BackendError(f"{model}: no such file")
    errors = runtime.capi.onnxruntime_pybind11_state
    weights = None if content is None else model.parent
    try:
        session = open_session(
            model if content is None else content,
            weights,
            settings=settings,
            provider=provider,
            threads=threads,
        )
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
