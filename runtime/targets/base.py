"""The port through which the runtime sees a target, whatever runs it.

A target keeps the K/V of a sequence, gives its own next token for every row it is fed, and the
context features a drafter conditions on. How it computes them is its own business. Writing one
takes three methods over three facts, and a number that it keeps for its caller; here is a complete
one, for a model that counts upwards and whose cache can be cut at any length:

    class CountingTarget(Croppable):
        feature_size, max_context, length = 4, 1000, 0
        generation = 0                                # which sequence is cached: the loop sets it

        def prefill(self, token_ids, *, want_logits=False):
            rows = self.verify(token_ids, want_logits=want_logits)
            return rows.last()                        # all features, the last row's decision

        def verify(self, token_ids, *, want_logits=False):
            self.length += len(token_ids)             # the rows are now cached
            following = (token_ids + 1) % 100
            logits = np.eye(100, dtype=np.float32)[following] if want_logits else None
            features = np.zeros((1, len(token_ids), self.feature_size), np.float32)
            return TargetRows(features=features, token_ids=following, logits=logits)

        def rollback(self, length):
            self.length = length                      # rows from here on may be overwritten

        def close(self):
            pass
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import FeedError

Rewinds = Literal["any", "last call"]
SNAPSHOT_BYTES = 256 << 20  # most bytes of kept snapshots, unless the caller says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """What a target says about the rows it was just fed.

    Attributes:
        features: [1, T, m*H_t] float32, outputs of the tapped layers of every fed token,
            concatenated in the order of ``target_layer_ids``; width 0 where nothing is tapped.
        token_ids: [R] int64, the most probable next token after each of the last R tokens.
        logits: [R, V] float32 of the same rows, if they were wanted.
    """

    features: NDArray[np.float32]
    token_ids: NDArray[np.int64]
    logits: NDArray[np.float32] | None = None

    def last(self) -> TargetRows:
        """Return the same features with the decision of the last row only."""
        logits = None if self.logits is None else self.logits[-1:]
        return replace(self, token_ids=self.token_ids[-1:], logits=logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What leads a target back to a length that it once had.

    Keys and values are not in it: their rows stay until a call overwrites them.

    Attributes:
        length: the most tokens it leads back to.
        first: the fewest; a graph with states takes back rows of its last call.
        token_ids: the tokens, where the target knows them.
        start: tokens before the last call, whose rows are still open; for states only.
        states: copies of the states, by the name of the graph's input; empty without any.
    """

    length: int
    first: int = 0
    token_ids: tuple[int, ...] = ()
    start: int = 0
    states: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the states."""
        return sum(array.nbytes for array in self.states.values())


class Target(Protocol):
    """A target with the K/V of one sequence.

    Attributes:
        generation: number of that sequence, see `draftrt.runtime.decoding.turns.claim`; 0 from
            ``rollback(0)`` until somebody claims the cache.
        rewinds: ``any`` where its caches can be cut at every length; ``last call`` where only rows
            of the last call can be taken back, and what is further back takes a snapshot or
            computing again. `rollback` is right in both cases, and `reach` says what it costs.
    """

    generation: int
    rewinds: Rewinds

    @property
    def feature_size(self) -> int:
        """Width of the features, m * H_t."""

    @property
    def max_context(self) -> int:
        """Most tokens a sequence may have."""

    @property
    def length(self) -> int:
        """Tokens whose K/V are cached."""

    def prefill(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append a prompt to the cache.

        Args:
            token_ids: [T] int64, T >= 1.
            want_logits: whether logits are needed beside the most probable token.

        Returns:
            Features of all T tokens; token and logits after the last one only (R = 1).
        """

    def verify(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append an anchor and its drafts to the cache.

        Args:
            token_ids: [T] int64, T >= 1.
            want_logits: whether logits are needed beside the most probable token.

        Returns:
            Features, tokens and logits of all T rows (R = T).
        """

    def rollback(self, length: int) -> None:
        """Forget every cached token from position ``length`` on; 0 starts a new sequence.

        Also right after a call that was interrupted, whatever it had cached by then. A length
        at or above the cached one changes nothing.
        """

    def reach(self, length: int) -> int:
        """Return the most of the first ``length`` cached tokens that need no computing again.

        A call after ``rollback`` to there goes on at once.
        """

    def keep(self) -> None:
        """Take note that a prompt or a turn ends at the present length: somebody may come back.

        Nothing to do where the caches can be cut anywhere.
        """

    def snapshot(self) -> Snapshot:
        """Return what leads back to the present length."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to the length of a snapshot of this target.

        Tokens whose rows a call has overwritten since are computed again.

        Raises:
            FeedError: they are overwritten, and the target does not know the tokens.
        """

    def close(self) -> None:
        """Free the target; calling it twice is harmless."""


class Croppable:
    """The part of a target whose caches can be cut at every length."""

    rewinds: Rewinds = "any"

    def reach(self: Target, length: int) -> int:
        """Return how many of the first ``length`` tokens are cached."""
        return min(length, self.length)

    def keep(self) -> None:
        """Do nothing: the rows stay until they are overwritten."""

    def snapshot(self: Target) -> Snapshot:
        """Return the present length."""
        return Snapshot(length=self.length)

    def restore(self: Target, snapshot: Snapshot) -> None:
        """Go back to the length of a snapshot; see `Target.restore`."""
        if snapshot.length > self.length:
            raise FeedError(
                f"a snapshot of {snapshot.length} tokens: the cache holds {self.length} now, "
                "expected as many at least",
                hint="feed the tokens behind them again",
            )
        self.rollback(snapshot.length)
