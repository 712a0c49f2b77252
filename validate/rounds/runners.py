"""Runners for Polygraphy's comparator that carry a drafter's caches from round to round.

The comparator feeds every runner the same rounds; caches are no part of a feed, because each side
must live with what it wrote itself. Knows names and shapes, not models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import require
from draftrt.errors import BackendError
from draftrt.lifecycle import Closing
from draftrt.onnx_session import load_onnxruntime, point_to_weights
from draftrt.runtime.backends.base import GraphSession
from draftrt.runtime.backends.ort import AS_WRITTEN, INT8, QUANTISED_PRODUCTS
from draftrt.signature import Signature, TensorSpec

Arrays = dict[str, NDArray[Any]]


class Rounds(Protocol):
    """Something that drafts the rounds of a sequence and carries its caches."""

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; a context length of 0 starts a new sequence with zeroed caches."""


class PolygraphyRounds:
    """Rounds on one of Polygraphy's own runners, caches passed in and out as arrays."""

    def __init__(self, runner: Any, signature: Signature, capacities: Iterable[int]) -> None:
        """Prepare for sequences.

        Args:
            runner: an active runner of a graph with this signature.
            signature: names, types and shapes; rows of caches are taken from ``capacities``.
            capacities: rows of the caches for each sequence in turn.
        """
        self._runner = runner
        self._signature = signature
        self._capacities = iter(capacities)
        self._aliases = {tensor.name: tensor.alias for tensor in signature.outputs if tensor.alias}
        self._caches: Arrays = {}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; see `Rounds.run`."""
        if int(feeds["context_length"][0]) == 0:
            rows = next(self._capacities)
            pasts = [self._signature.input(name) for name in self._aliases.values()]
            self._caches = {tensor.name: _zeros(tensor, rows) for tensor in pasts}
        outputs: Arrays = dict(self._runner.infer({**feeds, **self._caches}))
        self._caches = {past: outputs[name] for name, past in self._aliases.items()}
        return outputs


class SessionRounds:
    """Rounds on a session of the runtime, which keeps its caches to itself."""

    def __init__(self, session: GraphSession) -> None:
        """Prepare for sequences.

        Args:
            session: an open graph or plan; who opened it closes it.
        """
        self._session = session

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; what a sequence before this one left behind lies past the valid rows."""
        return dict(self._session.run(feeds))


class RoundRunner(Closing):
    """A runner as Polygraphy's comparator uses one: a context manager with metadata and `infer`.

    Attributes:
        name: shown beside its results.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        outputs: Sequence[TensorSpec],
        block_size: int,
        open_rounds: Callable[[], Rounds],
    ) -> None:
        """Describe a runner; nothing is loaded before it is entered.

        Args:
            name: shown beside its results.
            signature: of the graph; tells what is fed.
            outputs: what is compared.
            block_size: K, rows a call writes behind the new context.
            open_rounds: loads what drafts.
        """
        self.name = name
        self._signature = signature
        self._outputs = tuple(outputs)
        self._block_size = block_size
        self._open = open_rounds
        self._rounds: Rounds | None = None
        self._seconds = 0.0

    def __enter__(self) -> RoundRunner:
        """Load."""
        self._rounds = self._open()
        return self

    def close(self) -> None:
        """Free what was loaded."""
        self._rounds = None

    def get_input_metadata(self, use_numpy_dtypes: bool | None = None) -> Any:
        """Return Polygraphy's table of what a round is fed: every input but the caches."""
        from polygraphy.common import TensorMetadata

        caches = {tensor.alias for tensor in self._signature.outputs}
        metadata = TensorMetadata()
        for tensor in self._signature.inputs:
            if tensor.name not in caches:
                shape = [size if isinstance(size, int) else None for size in tensor.shape]
                metadata.add(tensor.name, dtype=np.dtype(tensor.dtype), shape=shape)
        return metadata

    def infer(self, feed_dict: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block.

        Returns:
            The outputs to compare; of the caches the rows that are valid after this call.
        """
        if self._rounds is None:
            raise AssertionError("the runner is not active")
        started = time.perf_counter()
        outputs = self._rounds.run(feed_dict)
        self._seconds = time.perf_counter() - started
        new_rows, length = feed_dict["target_hidden"].shape[1], feed_dict["context_length"][0]
        valid = int(length) + new_rows + self._block_size
        return {
            tensor.name: outputs[tensor.name][:, :, :valid]
            if tensor.alias
            else outputs[tensor.name]
            for tensor in self._outputs
        }

    def last_inference_time(self) -> float:
        """Return the seconds of the last round."""
        return self._seconds


def onnxruntime_runner(model: Path | bytes, weights: Path, *, as_run: bool = False) -> Any:
    """Return Polygraphy's ONNX Runtime runner of a graph, not yet active: one thread, no spinning.

    Args:
        model: ONNX file, or its content.
        weights: folder of its external data, for a content.
        as_run: multiply with quantised weights as the runtime does, with activations in int8;
            otherwise as the graph says, with activations in its own element type.

    Raises:
        BackendError: polygraphy or onnxruntime is missing.
    """
    require("polygraphy", "onnxruntime", what="parity")
    onnxruntime = load_onnxruntime()
    from polygraphy.backend.onnxrt import OnnxrtRunner

    def load() -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(QUANTISED_PRODUCTS, INT8 if as_run else AS_WRITTEN)
        options.log_severity_level = 3  # caches go in and out as arrays: copies are no news here
        mapped = point_to_weights(options, weights) if isinstance(model, bytes) else []
        content = model if isinstance(model, bytes) else str(model)
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        del mapped  # which it needed until now
        return session

    return OnnxrtRunner(load, name="onnxruntime")


@contextmanager
def onnxruntime_errors(what: Path | str) -> Iterator[None]:
    """Turn whatever ONNX Runtime raises about a graph into an error of its own.

    Raises:
        BackendError: ONNX Runtime refuses the graph, or fails while it runs.
    """
    onnxruntime = load_onnxruntime()
    kinds = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    own = tuple(one for one in kinds if isinstance(one, type) and issubclass(one, Exception))
    try:
        yield
    except own as error:
        raise BackendError(
            f"{what}: ONNX Runtime refuses it: {error!s:.400}",
            hint="the file may be damaged: restore it, or export again",
        ) from error


def _zeros(tensor: TensorSpec, rows: int) -> NDArray[Any]:
    """Return an empty cache [1, G, rows, D]."""
    batch, groups, _, width = tensor.shape
    return np.zeros((int(batch), int(groups), rows, int(width)), tensor.dtype)
