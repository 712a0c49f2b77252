"""What the last call of a graph with states left open, and the tokens it would take to start anew.

Such a graph holds its states as they were before the last rows of a call, and those rows beside
them; the next call says how many of them stand. Longer ago is out of reach: every row before is in
the states. Nothing here runs a graph.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftrt.signature import Signature, state_specs

UNKNOWN = -1
INPUTS = "past_inputs_"  # convolution inputs [rows, channels], which every layer with a state has


class LastCall:
    """The rows of a sequence that a graph with states can still take back."""

    def __init__(self, signature: Signature) -> None:
        """Take the number of rows that the graph carries from its signature.

        Args:
            signature: of a graph with the input ``commit_rows``.
        """
        self._carried = carried_rows(signature)
        self._tokens: list[int] = []
        self._start = self._first_open = 0

    def can_commit(self, length: int) -> bool:
        """Say whether the next call may go on behind the first ``length`` tokens."""
        if length == 0:
            return True
        return self._start != UNKNOWN and self._first_open <= length <= len(self._tokens)

    def token_ids(self, length: int) -> NDArray[np.int64]:
        """Return the first ``length`` tokens of the sequence, [length] int64."""
        return np.array(self._tokens[:length], np.int64)

    def begin(self, length: int) -> int:
        """Return ``commit_rows`` of a call behind ``length`` tokens; until `end`, all is unknown.

        An interrupt during the call leaves the states before it or after it, nobody knows which.
        """
        rows = length - self._start if length else 0
        self._start = UNKNOWN
        return rows

    def end(self, length: int, token_ids: NDArray[np.int64], rows: int) -> None:
        """Take note of a call that has succeeded.

        Args:
            length: tokens before it.
            token_ids: [T] int64, what it appended.
            rows: rows that the graph was fed, T or more; those behind T never stand.
        """
        self._tokens[length:] = token_ids.tolist()
        self._first_open = max(length, length + rows - self._carried)
        self._start = length

    def skip_to(self, length: int) -> None:
        """Count ``length`` rows as committed, whatever the states hold."""
        self._tokens = [0] * length
        self._start = self._first_open = length


def carried_rows(signature: Signature) -> int:
    """Return how many rows of a call the graph carries to the next one."""
    carried = (tensor for tensor in state_specs(signature) if tensor.name.startswith(INPUTS))
    return min(int(tensor.shape[0]) for tensor in carried)
