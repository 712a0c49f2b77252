"""A target as an exported graph: the port of `draftrt.runtime.target` over a graph session.

Rolling back is a length; rows behind it are overwritten by the next call. Knows neither which
backend runs the graph nor what a drafter is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import BundleError, FeedError
from draftrt.runtime.backend import GraphSession, cache_bytes, cache_specs
from draftrt.runtime.target import TargetRows

FEATURES, LOGITS, NEXT = "features", "logits", "next_ids"


class GraphTarget:
    """An exported target with the K/V of one sequence.

    Attributes:
        feature_size: width of the features, m * H_t; 0 where the graph taps nothing.
        max_context: rows of its caches.
        length: tokens whose K/V are cached.
    """

    def __init__(self, session: GraphSession, max_context: int) -> None:
        """Take over a session of a graph named ``target``.

        Raises:
            BundleError: the graph has not the outputs of a target.
        """
        specs = {tensor.name: tensor for tensor in session.signature.outputs}
        if NEXT not in specs or LOGITS not in specs:
            raise BundleError(
                f"target graph: outputs {sorted(specs)[:4]}, expected {NEXT} and {LOGITS}",
                hint="export the bundle again",
            )
        self._session = session
        self._max_rows = session.signature.dimensions["R"].max
        self._has_features = FEATURES in specs
        self.feature_size = int(specs[FEATURES].shape[2]) if self._has_features else 0
        self.max_context = max_context
        self.length = 0

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of K/V that one token takes in all layers together."""
        rows = int(cache_specs(self._session.signature)[0].shape[2])
        return cache_bytes(self._session.signature) // rows

    def prefill(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append a prompt, in pieces of the graph's most rows; see `Target.prefill`."""
        self._check(len(token_ids))
        features = []
        rows = None
        for start in range(0, len(token_ids), self._max_rows):
            piece = token_ids[start : start + self._max_rows]
            rows = self._run(piece, want_logits=want_logits)
            features.append(rows.features)
        assert rows is not None
        last = rows.last()
        return TargetRows(
            features=np.concatenate(features, axis=1) if len(features) > 1 else features[0],
            token_ids=last.token_ids,
            logits=last.logits,
        )

    def verify(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        """Append an anchor and its drafts; see `Target.verify`."""
        self._check(len(token_ids))
        return self._run(token_ids, want_logits=want_logits)

    def rollback(self, length: int) -> None:
        """Forget every cached token from position ``length`` on; 0 starts a new sequence."""
        self.length = min(self.length, length)

    def skip_to(self, length: int) -> None:
        """Count the rows up to ``length`` as cached, whatever they hold: to measure times only."""
        self.length = length

    def close(self) -> None:
        """Free the graph; calling it twice is harmless."""
        self._session.close()

    def _check(self, count: int) -> None:
        if count < 1:
            raise FeedError("a target call has no tokens, expected at least 1")
        if self.length + count > self.max_context:
            raise FeedError(
                f"target cache: {self.length} rows + {count} new = {self.length + count}, expected "
                f"at most {self.max_context}",
                hint="shorten the text, or export with a larger --max-context",
            )

    def _run(self, token_ids: NDArray[np.int64], *, want_logits: bool) -> TargetRows:
        out: dict[str, NDArray[Any]] = self._session.run(
            {
                "input_ids": np.asarray(token_ids, np.int64)[None],
                "context_length": np.array([self.length], np.int64),
            },
            rows=self.length + len(token_ids),
            unwanted=() if want_logits else (LOGITS,),
        )
        self.length += len(token_ids)
        empty = np.zeros((1, len(token_ids), 0), np.float32)
        return TargetRows(
            features=out[FEATURES] if self._has_features else empty,
            token_ids=out[NEXT][0],
            logits=out[LOGITS][0] if want_logits else None,
        )
