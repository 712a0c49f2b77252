"""Runners for Polygraphy's comparator that carry a drafter's caches from round to round.

The comparator feeds every runner the same rounds; caches are no part of a feed, because each side
must live with what it wrote itself. Knows names and shapes, not models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftrt.lifecycle import Closing
from draftrt.runtime.backends.base import GraphSession
from draftrt.runtime.backends.ort import OrtSession
from draftrt.signature import CONTEXT_LENGTH, TARGET_HIDDEN, Signature, TensorSpec

Arrays = dict[str, NDArray[Any]]


class Rounds(Protocol):
    """Something that drafts the rounds of a sequence and carries its caches."""

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; a context length of 0 starts a new sequence with zeroed caches."""


class SessionRounds:
    """Rounds on a session of the runtime, which keeps its caches to itself."""

    def __init__(self, session: GraphSession, block_size: int) -> None:
        """Prepare for sequences.

        Args:
            session: an open graph or plan; who opened it closes it.
            block_size: K, rows a call writes behind the new context.
        """
        self._session, self._block_size = session, block_size

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; what a sequence before this one left behind lies past the valid rows.

        Returns:
            The outputs, and the caches where the session can tell them.
        """
        rows = int(feeds[CONTEXT_LENGTH][0]) + feeds[TARGET_HIDDEN].shape[1] + self._block_size
        found = dict(self._session.run(feeds, rows=rows))
        if isinstance(self._session, OrtSession):
            found |= self._session.caches()
        return found


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
        new_rows, length = feed_dict[TARGET_HIDDEN].shape[1], feed_dict[CONTEXT_LENGTH][0]
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
