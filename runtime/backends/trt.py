"""Graphs on TensorRT-RTX and TensorRT: caches stay on the GPU, calls become CUDA graphs.

Where the plan writes its caches in place, each is one buffer bound as input and as output. Plans
of operators that cannot (profile ``compat``) get two buffers a cache, which change roles with every
call. Does not know what the graph computes.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from draftrt.errors import BackendError
from draftrt.lifecycle import Closing
from draftrt.runtime.backends.base import Arrays, check_states, fed_signature
from draftrt.runtime.backends.cuda import Buffers, Cuda
from draftrt.runtime.backends.trt_engine import Engine, shape_of, sizes_of
from draftrt.signature import Signature, TensorSpec, cache_specs, check_feeds, state_specs

MAX_RECORDINGS = 24

Shapes = tuple[tuple[int, ...], ...]


class TrtSession(Closing):
    """A plan on one GPU.

    One session holds one set of caches and is not for use by several threads at once.

    Attributes:
        is_in_place: whether the caches are updated in place.
        num_recordings: combinations of sizes that run as a CUDA graph recorded here.
    """

    def __init__(
        self,
        module: ModuleType,
        plan: Path,
        signature: Signature,
        cuda: Cuda,
        *,
        jit_cache: Path | None = None,
        weights: Path | None = None,
    ) -> None:
        """Load a plan and make its caches.

        Args:
            module: ``tensorrt_rtx`` or ``tensorrt``.
            plan: the plan file, built for this GPU.
            signature: the table of its graph, as the manifest has it.
            cuda: the GPU; closed with the session.
            jit_cache: file that keeps what the backend compiles at run time, if it does.
            weights: for a plan without weights, the ONNX file that has them.

        Raises:
            BackendError: the plan does not load on this GPU, or memory does not suffice.
            BundleError: its inputs or outputs are not those of the signature.
        """
        self._engine: Engine | None = Engine(module, plan, signature, weights)
        self._signature = self._engine.signature
        self._fed = fed_signature(self._signature)
        self._cuda = cuda
        self.is_in_place = self._engine.is_in_place
        self._context = self._engine.make_context(jit_cache)
        self._buffers = Buffers(cuda)
        self._addresses: dict[str, int] = {}
        self._shapes: Shapes | None = None
        self._parity = 0
        self._doubled = {tensor.name for tensor in state_specs(self._signature)}
        if not self.is_in_place:
            self._doubled |= {tensor.name for tensor in cache_specs(self._signature)}
        self._num_calls: dict[Hashable, int] = {}
        self._recordings: dict[Hashable, Any] = {}
        self._is_busy = False
        for tensor in self._held():
            for copy in range(2 if tensor.name in self._doubled else 1):
                self._cache(tensor.name, copy)
        cuda.synchronize()

    @property
    def signature(self) -> Signature:
        """The graph's whole table, caches included, with the sizes the plan was built for."""
        return self._signature

    @property
    def num_recordings(self) -> int:
        """Combinations of sizes that run as a CUDA graph recorded here."""
        return sum(recording is not None for recording in self._recordings.values())

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Run the graph once; see `draftrt.runtime.backends.base.GraphSession.run`."""
        engine = self._engine
        if engine is None:
            raise BackendError("the session is closed", hint="open the bundle again")
        check_feeds(self._fed, feeds)
        if self._is_busy:  # a call was interrupted: its copies must not meet those of this one
            self._cuda.synchronize()
        self._is_busy = True
        shapes = tuple(feeds[tensor.name].shape for tensor in self._fed.inputs)
        self._reserve(shapes)
        for tensor in self._fed.inputs:
            self._buffers.push(tensor.name, feeds[tensor.name])
        is_first = not self._num_calls
        self._enqueue(engine, shapes)
        sizes = sizes_of(self._fed, shapes)
        views = {
            tensor.name: self._buffers.pull(tensor.name, shape_of(tensor, sizes), tensor.dtype)
            for tensor in self._fed.outputs
            if tensor.name not in unwanted
        }
        self._cuda.synchronize()
        self._parity = self._next_parity()
        self._is_busy = False
        if is_first:
            engine.save_jit()
        return {name: view.copy() for name, view in views.items()}

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the states; see `draftrt.runtime.backends.base.StateSession`."""
        if self._engine is None:
            raise BackendError("the session is closed", hint="open the bundle again")
        self._cuda.synchronize()
        found = {}
        for tensor in state_specs(self._signature):
            name = self._copy_of(tensor.name, self._parity)
            shape = tuple(int(size) for size in tensor.shape)
            found[tensor.name] = self._buffers.pull(name, shape, tensor.dtype)
        self._cuda.synchronize()
        return {name: view.copy() for name, view in found.items()}

    def restore(self, states: Arrays) -> None:
        """Put the states of a snapshot back."""
        if self._engine is None:
            raise BackendError("the session is closed", hint="open the bundle again")
        check_states(self._signature, states)
        self._cuda.synchronize()
        for name, array in states.items():
            self._buffers.push(self._copy_of(name, self._parity), array)
        self._cuda.synchronize()

    def cache_address(self, name: str) -> int:
        """Return the address a cache is read from; in place it never changes."""
        return self._cache(name, self._parity)

    def close(self) -> None:
        """Free the plan, its caches and the GPU's stream; calling it twice is harmless."""
        if self._engine is None:
            return
        self._cuda.synchronize()
        self._engine.save_jit()
        self._forget_recordings()
        self._context = self._engine = None
        self._buffers.close()
        self._cuda.close()

    def _held(self) -> tuple[TensorSpec, ...]:
        return (*cache_specs(self._signature), *state_specs(self._signature))

    def _next_parity(self) -> int:
        return 1 - self._parity if self._doubled else 0

    def _cache(self, name: str, parity: int) -> int:
        """Return the address of a cache or state that a call of this parity reads."""
        tensor = self._signature.input(name)
        shape = tuple(int(size) for size in tensor.shape)
        return self._buffers.device(self._copy_of(name, parity), shape, tensor.dtype)

    def _copy_of(self, name: str, parity: int) -> str:
        """Return the buffer of a cache or state that a call of this parity reads."""
        return f"{name}{parity if name in self._doubled else 0}"

    def _reserve(self, shapes: Shapes) -> None:
        """Make room for fed and fetched tensors of these shapes, and note where they lie."""
        sizes = sizes_of(self._fed, shapes)
        found = {
            tensor.name: self._buffers.device(tensor.name, shape_of(tensor, sizes), tensor.dtype)
            for tensor in (*self._fed.inputs, *self._fed.outputs)
        }
        for tensor in self._signature.outputs:
            past = tensor.alias or tensor.becomes
            if past:
                found[past] = self._cache(past, self._parity)
                found[tensor.name] = self._cache(past, self._next_parity())
        fed = {tensor.name for tensor in (*self._fed.inputs, *self._fed.outputs)}
        if any(self._addresses.get(name, found[name]) != found[name] for name in fed):
            self._forget_recordings()  # they hold addresses that are no more
        for name, address in found.items():
            if self._addresses.get(name) != address:
                self._call("set_tensor_address", name, address)
        self._addresses = found

    def _enqueue(self, engine: Engine, shapes: Shapes) -> None:
        """Put the computation on the stream.

        Sizes that come back are recorded, and from the third call on the recording is launched. A
        recording is made right behind a call of the same sizes, because the first call after they
        changed does work of its own that cannot be recorded.
        """
        key = (shapes, self._parity)
        recording = self._recordings.get(key)
        if recording is not None:
            self._cuda.launch(recording)
        else:
            self._execute(shapes)
            is_known = self._num_calls.get(key, 0) > 0
            if is_known and not engine.captures_itself and key not in self._recordings:
                self._record(key, shapes)
        self._num_calls[key] = self._num_calls.get(key, 0) + 1

    def _record(self, key: Hashable, shapes: Shapes) -> None:
        while len(self._recordings) >= MAX_RECORDINGS:
            self._free(self._recordings.pop(next(iter(self._recordings))))
        self._cuda.begin_capture()
        try:
            self._execute(shapes)
        finally:
            recording = self._cuda.end_capture()
        self._recordings[key] = recording

    def _execute(self, shapes: Shapes) -> None:
        if shapes != self._shapes:
            self._shapes = None
            self._set_shapes(shapes)
            self._shapes = shapes
        self._call("execute_async_v3", self._cuda.stream)

    def _set_shapes(self, shapes: Shapes) -> None:
        for tensor, shape in zip(self._fed.inputs, shapes, strict=True):
            self._call("set_input_shape", tensor.name, shape)
        if missing := self._context.infer_shapes():
            raise BackendError(f"the plan leaves the shapes of {missing} open")
        sizes = sizes_of(self._fed, shapes)
        for tensor in self._fed.outputs:
            found, expected = (
                tuple(self._context.get_tensor_shape(tensor.name)),
                shape_of(tensor, sizes),
            )
            if found != expected:
                raise BackendError(
                    f"the plan gives {tensor.name} the shape {list(found)}, expected "
                    f"{list(expected)}",
                    hint="the plan is of another graph; build it again",
                )

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a method of the context that returns whether it succeeded."""
        if not getattr(self._context, name)(*arguments):
            errors = self._engine.log.errors if self._engine else ()
            raise BackendError(
                f"TensorRT: {name}{arguments} failed: {'; '.join(errors) or 'it does not say why'}"
            )

    def _forget_recordings(self) -> None:
        for recording in self._recordings.values():
            self._free(recording)
        self._recordings.clear()

    def _free(self, recording: Any) -> None:
        if recording is not None:
            self._cuda.free_recording(recording)
