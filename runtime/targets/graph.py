"""A target as an exported graph: the port of `draftrt.runtime.targets.base` over a graph session.

Rolling back is a length; rows behind it are overwritten by the next call. A graph with states (of
linear attention or convolutions) is told with each call how many rows of the last one stand. What
it cannot take back any more, because later rows are in its states, is computed anew from the
tokens, from the nearest kept snapshot on. Knows neither which backend runs the graph nor what a
drafter is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import BackendError, BundleError, FeedError
from draftrt.runtime.backends.base import Arrays, GraphSession, StateSession
from draftrt.runtime.targets.base import SNAPSHOT_BYTES, Rewinds, Snapshot, TargetRows
from draftrt.runtime.targets.last_call import LastCall
from draftrt.runtime.targets.snapshots import CachedText, common_length
from draftrt.signature import (
    COMMIT_ROWS,
    CONTEXT_LENGTH,
    FEATURES,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    NEXT_IDS,
    cache_bytes,
    cache_specs,
)

KEEP_EVERY = 512  # tokens of a long prompt between two snapshots


class GraphTarget:
    """An exported target with the K/V of one sequence.

    Attributes:
        rewinds: see `Target.rewinds`.
        feature_size: width of the features, m * H_t; 0 where the graph taps nothing.
        max_context: most tokens that a sequence may have.
        length: tokens whose K/V are cached.
        generation: number of the sequence they belong to; 0 where nobody claimed them.
    """

    def __init__(
        self,
        session: GraphSession,
        max_context: int,
        *,
        least_rows: int = 1,
        snapshot_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        """Take over a session of a graph named ``target``.

        Args:
            session: it.
            max_context: rows of its caches.
            least_rows: a call of fewer rows is fed its last token again behind them. For a session
                that computes fewer rows in another way than more, so that a token's logits do not
                depend on how many are verified with it.
            snapshot_bytes: most bytes of the snapshots that are kept of a graph with states.

        Raises:
            BundleError: the graph has not the outputs of a target.
        """
        specs = {tensor.name: tensor for tensor in session.signature.outputs}
        if NEXT_IDS not in specs or LOGITS not in specs:
            raise BundleError(
                f"target graph: outputs {sorted(specs)[:4]}, expected {NEXT_IDS} and {LOGITS}",
                hint="export the bundle again",
            )
        self._session = session
        self._max_rows = session.signature.dimensions["R"].max
        self._max_asked = min(self._max_rows, session.signature.dimensions["S"].max)
        self._has_features = FEATURES in specs
        self.feature_size = int(specs[FEATURES].shape[2]) if self._has_features else 0
        self._least_rows = min(least_rows, self._max_asked)
        self.max_context = max_context - (self._least_rows - 1)
        self.length = self.generation = 0
        has_states = any(tensor.name == COMMIT_ROWS for tensor in session.signature.inputs)
        self._last_call = LastCall(session.signature) if has_states else None
        self.rewinds: Rewinds = "last call" if has_states else "any"
        self._cached = CachedText(snapshot_bytes)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of K/V that one token takes in all layers together."""
        rows = int(cache_specs(self._session.signature)[0].shape[2])
        return cache_bytes(self._session.signature) // rows

    def prefill(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append a prompt, in pieces of the graph's most rows; see `Target.prefill`."""
        self._recover()
        *first, last = self._pieces(token_ids, self._max_rows)
        pieces, kept = [], self.length
        for piece in first:
            rows = np.array([len(piece) - 1], np.int64)
            pieces.append(self._run(piece, rows, want_logits=want_logits))
            if self.length - kept >= KEEP_EVERY:
                self.keep()
                kept = self.length
        # With its row of logits, so that no text begins where they are no numbers.
        pieces.append(self._run(last, np.array([len(last) - 1], np.int64), want_logits=True))
        features = _joined([piece.features for piece in pieces], axis=1)
        logits = pieces[-1].logits if want_logits else None
        return replace(pieces[-1], features=features, logits=logits)

    def verify(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append an anchor and its drafts; see `Target.verify`.

        More than the graph answers for at once come in pieces.
        """
        self._recover()
        pieces = [
            self._run(piece, np.arange(len(piece), dtype=np.int64), want_logits=want_logits)
            for piece in self._pieces(token_ids, self._max_asked)
        ]
        logits = [piece.logits for piece in pieces if piece.logits is not None]
        return TargetRows(
            features=_joined([piece.features for piece in pieces], axis=1),
            token_ids=_joined([piece.token_ids for piece in pieces]),
            logits=_joined(logits) if logits else None,
        )

    def rollback(self, length: int) -> None:
        """Forget every cached token from position ``length`` on; 0 starts a new sequence.

        With states, a length before the rows that the last call left open makes the next call
        compute the tokens up to there once more, from the nearest kept snapshot on.
        """
        self.length = min(self.length, length)
        if length == 0:
            self.generation = 0

    def reach(self, length: int) -> int:
        """Return the most of these tokens that need no computing again; see `Target.reach`."""
        length = min(length, self.length)
        if self._last_call is None or self._last_call.can_commit(length):
            return length
        nearest = self._cached.nearest(length)
        return 0 if nearest is None else min(nearest.length, length)

    def keep(self) -> None:
        """Keep a snapshot of the present length, for a graph with states that it knows."""
        if self._last_call is not None and self.length and self._last_call.can_commit(self.length):
            self._cached.keep(self._snapshot(self._last_call))

    def snapshot(self) -> Snapshot:
        """Return what leads back to the present length; see `Target.snapshot`."""
        self._recover()
        if self._last_call is not None and self.length:
            return self._snapshot(self._last_call)
        return Snapshot(length=self.length, token_ids=tuple(self._cached.token_ids[: self.length]))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; tokens whose rows were overwritten since are computed again."""
        self.length = common_length(self._cached.token_ids, snapshot.token_ids)
        if snapshot.states and snapshot.first <= self.length:
            self._put_back(snapshot)
        if self.length < snapshot.length:
            self.prefill(np.array(snapshot.token_ids[self.length :], np.int64))

    @property
    def session(self) -> GraphSession:
        """What runs the graph."""
        return self._session

    def take_over(self, token_ids: Sequence[int], snapshot: Snapshot) -> None:
        """Count rows that were written into the caches as those of a text.

        Args:
            token_ids: of the text.
            snapshot: of its end, with the states of a graph that has some.

        Raises:
            FeedError: states of another graph.
        """
        self.length = self.generation = 0
        self._cached.cut(0)
        self._cached.end(0, token_ids)
        if self._last_call is None:
            self.length = len(token_ids)
        else:
            self.restore(snapshot)

    @property
    def kept_lengths(self) -> tuple[int, ...]:
        """The lengths that kept snapshots lead back to, the shortest first."""
        return self._cached.lengths

    @property
    def kept_bytes(self) -> int:
        """Bytes of the kept snapshots."""
        return self._cached.num_bytes

    def skip_to(self, length: int) -> None:
        """Count the rows up to ``length`` as cached, whatever they hold: to measure times only."""
        self.length, self.generation = length, 0
        self._cached.cut(0)
        self._cached.end(0, [0] * length)
        if self._last_call is not None:
            self._last_call.skip_to(length)

    def close(self) -> None:
        """Free the graph; calling it twice is harmless."""
        self._session.close()

    def _pieces(self, token_ids: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
        """Cut the tokens of a call into pieces of at most ``most``, if the cache has room."""
        count = len(token_ids)
        if count < 1:
            raise FeedError("a target call has no tokens, expected at least 1")
        if self.length + count > self.max_context:
            raise FeedError(
                f"target cache: {self.length} rows + {count} new = {self.length + count}, expected "
                f"at most {self.max_context}",
                hint="shorten the text, or export with a larger --max-context",
            )
        starts = list(range(0, count, most))
        if self._last_call is not None and len(starts) > 1:
            # The last piece has as many rows as stay open: prompts often part near their end.
            starts[-1] = max(min(starts[-1], count - self._last_call.carried), starts[-2] + 1)
        return np.split(token_ids, starts[1:])

    def _recover(self) -> None:
        """Compute cached tokens anew where the states hold rows that were rolled back."""
        if self._last_call is None or self._last_call.can_commit(self.length):
            return
        length, nearest = self.length, self._cached.nearest(self.length)
        token_ids = self._cached.token_ids[:length]
        try:
            self.length = 0
            if nearest is not None:
                self.length = min(nearest.length, length)
                self._put_back(nearest)
            if self.length < length:
                left = np.array(token_ids[self.length :], np.int64)
                for piece in self._pieces(left, self._max_rows):
                    self._run(piece, np.array([len(piece) - 1], np.int64), want_logits=False)
        except BaseException:
            self._cached.end(0, token_ids)  # broken off: the next call begins with it again
            self.length = length
            raise

    def _snapshot(self, last_call: LastCall) -> Snapshot:
        """Return the states as they are, which stand for the present length."""
        return replace(
            last_call.opened(self.length),
            token_ids=tuple(self._cached.token_ids[: self.length]),
            states=cast(StateSession, self._session).snapshot(),
        )

    def _put_back(self, snapshot: Snapshot) -> None:
        """Give the graph the states of a snapshot; the rows up to ``length`` hold its tokens."""
        assert self._last_call is not None
        self._last_call.begin(0)  # until all states are there
        cast(StateSession, self._session).restore(snapshot.states)
        self._last_call.put_back(replace(snapshot, length=min(snapshot.length, self.length)))

    def _run(
        self, token_ids: NDArray[np.int64], logit_rows: NDArray[np.int64], *, want_logits: bool
    ) -> TargetRows:
        """Feed tokens [T]; the answer's tokens and logits are those behind ``logit_rows`` [S]."""
        count, asked = len(token_ids), len(logit_rows)
        fed = _padded(np.asarray(token_ids, np.int64), self._least_rows)
        feeds = {
            INPUT_IDS: fed[None],
            CONTEXT_LENGTH: np.array([self.length], np.int64),
            LOGIT_ROWS: _padded(logit_rows, self._least_rows),
        }
        text = token_ids.tolist()
        self._cached.begin(self.length, text)
        if self._last_call is not None:
            feeds[COMMIT_ROWS] = np.array([self._last_call.begin(self.length)], np.int64)
        out: dict[str, NDArray[Any]] = self._session.run(
            feeds, rows=self.length + len(fed), unwanted=() if want_logits else (LOGITS,)
        )
        if self._last_call is not None:
            self._last_call.end(self.length, count, len(fed))
        self._cached.end(self.length, text)
        self._check_finite(out)
        self.length += count  # rows of repeated tokens are overwritten by the next call
        empty = np.zeros((1, count, 0), np.float32)
        return TargetRows(
            features=out[FEATURES][:, :count] if self._has_features else empty,
            token_ids=out[NEXT_IDS][0][:asked],
            logits=out[LOGITS][0][:asked] if want_logits else None,
        )

    def _check_finite(self, out: Arrays) -> None:
        """Refuse answers that are no numbers: the largest of them would be any token.

        Raises:
            BackendError: features or logits hold an infinity or NaN.
        """
        wrong = [
            name for name in (FEATURES, LOGITS) if name in out and not np.isfinite(out[name]).all()
        ]
        if not wrong:
            return
        is_narrow = any(one.dtype == "float16" for one in self._session.signature.inputs)
        why = "float16 overflows (largest 65504)" if is_narrow else "weights are damaged"
        raise BackendError(
            f"target graph: {' and '.join(wrong)} are not finite at token {self.length}: {why}",
            hint="export with --precision bf16 or fp32"
            if is_narrow
            else "`draftrt validate parity BUNDLE` compares the graph with its module",
        )


def _padded(values: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Return the values, the last one repeated up to ``least`` of them."""
    if len(values) >= least:
        return values
    return np.pad(values, (0, least - len(values)), mode="edge")


def _joined(arrays: list[NDArray[Any]], axis: int = 0) -> NDArray[Any]:
    """Join the answers of a call's pieces; one piece is not copied."""
    return np.concatenate(arrays, axis) if len(arrays) > 1 else arrays[0]
