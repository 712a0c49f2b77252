"""What the last call of a graph with states left open.

Such a graph holds its states as they were before the last rows of a call, and those rows beside
them; the next call says how many of them stand. Longer ago is out of reach: every row before is in
the states. Nothing here runs a graph.
"""

from __future__ import annotations

from draftrt.runtime.targets.base import Snapshot
from draftrt.signature import Signature, state_specs

UNKNOWN = -1
INPUTS = "past_inputs_"  # convolution inputs [rows, channels], which every layer with a state has


class LastCall:
    """The rows of a sequence that a graph with states can still take back.

    Attributes:
        carried: the most of a call.
    """

    def __init__(self, signature: Signature) -> None:
        """Take the number of rows that the graph carries from its signature.

        Args:
            signature: of a graph with the input ``commit_rows``.
        """
        self.carried = carried_rows(signature)
        self._start = self._first_open = self._end = 0

    def can_commit(self, length: int) -> bool:
        """Say whether the next call may go on behind the first ``length`` tokens."""
        if length == 0:
            return True
        return self._start != UNKNOWN and self._first_open <= length <= self._end

    def begin(self, length: int) -> int:
        """Return ``commit_rows`` of a call behind ``length`` tokens; until `end`, all is unknown.

        An interrupt during the call leaves the states before it or after it, nobody knows which.
        """
        rows = length - self._start if length else 0
        self._start = UNKNOWN
        return rows

    def end(self, length: int, count: int, rows: int) -> None:
        """Take note of a call that has succeeded.

        Args:
            length: tokens before it.
            count: tokens that it appended.
            rows: rows that the graph was fed, as many or more; those behind never stand.
        """
        self._first_open = max(length, length + rows - self.carried)
        self._start, self._end = length, length + count

    def skip_to(self, length: int) -> None:
        """Count ``length`` rows as committed, whatever the states hold."""
        self._start = self._first_open = self._end = length

    def opened(self, length: int) -> Snapshot:
        """Return the rows that are open now as a snapshot without states, up to ``length``."""
        return Snapshot(length=length, first=max(self._first_open, 1), start=self._start)

    def put_back(self, snapshot: Snapshot) -> None:
        """Count the rows as open that were so when the snapshot was taken."""
        self._start, self._first_open = snapshot.start, snapshot.first
        self._end = snapshot.length


def carried_rows(signature: Signature) -> int:
    """Return how many rows of a call the graph carries to the next one."""
    carried = (tensor for tensor in state_specs(signature) if tensor.name.startswith(INPUTS))
    return min(int(tensor.shape[0]) for tensor in carried)
