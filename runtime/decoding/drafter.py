"""A drafter and how much of the sequence its context cache holds.

A call writes the K/V of T new context rows and of the K block rows behind them; only the T rows
stay, because the next call overwrites the rest. Cropping is therefore a number, never a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import FeedError
from draftrt.runtime.backends.base import Arrays, GraphSession
from draftrt.signature import (
    ANCHOR,
    CONFIDENCE,
    CONTEXT_LENGTH,
    DRAFT_IDS,
    TARGET_HIDDEN,
    cache_bytes,
    cache_specs,
)
from draftrt.spec import DrafterSpec

NOISE, INVERSE_TEMPERATURE = "noise", "inverse_temperature"


class DraftSession:
    """A drafter's graph with the context of one sequence.

    Attributes:
        spec: the drafter's facts.
        context_length: committed tokens whose K/V are in the cache.
        generation: number of the sequence they belong to; 0 where nobody claimed them.
        capacity: rows of the cache, L.
        noise_shape: shape of the noise that makes drafts draws, [1, n, W]; None where the graph
            takes none.
        extra_outputs: outputs beside ``draft_ids`` and ``confidence``.
    """

    def __init__(self, spec: DrafterSpec, session: GraphSession) -> None:
        self.spec = spec
        self.context_length = self.generation = 0
        self.capacity = int(cache_specs(session.signature)[0].shape[2])
        self._session = session
        shapes = {tensor.name: tensor.shape for tensor in session.signature.inputs}
        self.noise_shape = tuple(map(int, shapes[NOISE])) if NOISE in shapes else None
        self.extra_outputs = tuple(
            tensor.name
            for tensor in session.signature.outputs
            if not tensor.alias and tensor.name not in (DRAFT_IDS, CONFIDENCE)
        )
        self._greedy_walk: dict[str, NDArray[np.float32]] = {}
        if self.noise_shape is not None:
            zero, one = np.zeros(self.noise_shape, np.float32), np.ones(1, np.float32)
            self._greedy_walk = {NOISE: zero, INVERSE_TEMPERATURE: one}

    @property
    def session(self) -> GraphSession:
        """What runs the graph."""
        return self._session

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of K/V that one token takes in all layers together."""
        return cache_bytes(self._session.signature) // self.capacity

    def draft(
        self,
        anchor: int,
        features: NDArray[np.float32],
        walk: Arrays | None = None,
        *,
        unwanted: tuple[str, ...] = (),
    ) -> dict[str, NDArray[Any]]:
        """Append context and draft one block behind it.

        Args:
            anchor: last committed token; its position follows the new context.
            features: [1, T, m*H_t] float32, target features of the T >= 1 committed tokens that
                the cache does not hold yet.
            walk: ``noise`` and ``inverse_temperature`` of a graph that takes them; None for the
                greedy choice.
            unwanted: outputs that need not be fetched.

        Returns:
            The graph's outputs: ``draft_ids`` [1, n] int64, ``confidence`` [1, n] float32 where
            there is a confidence head, and whatever else was exported with it.

        Raises:
            FeedError: the features have another width, or the block would not fit the cache;
                nothing has run then.
        """
        check_feature_size(self.spec, int(features.shape[-1]))
        self.check_capacity(int(features.shape[1]))
        outputs = self._session.run(
            {
                ANCHOR: np.array([anchor], np.int64),
                TARGET_HIDDEN: features,
                CONTEXT_LENGTH: np.array([self.context_length], np.int64),
                **(self._greedy_walk if walk is None else walk),
            },
            rows=self.context_length + int(features.shape[1]) + self.spec.block_size,
            unwanted=unwanted,
        )
        self.context_length += int(features.shape[1])
        return outputs

    def check_capacity(self, num_new: int) -> None:
        """Check that a block behind ``num_new`` more context rows fits the cache.

        Raises:
            FeedError: it does not.
        """
        needed = self.context_length + num_new + self.spec.block_size
        if needed > self.capacity:
            raise FeedError(
                f"drafter cache: {self.context_length} rows + {num_new} new + block of "
                f"{self.spec.block_size} = {needed} rows, expected at most "
                f"{self.capacity}",
                hint="shorten the text, or export with a larger --max-context",
            )

    def crop(self, length: int) -> None:
        """Forget the context from position ``length`` on; 0 starts a new sequence."""
        self.context_length = min(self.context_length, length)

    def close(self) -> None:
        """Free the graph."""
        self._session.close()


def check_feature_size(spec: DrafterSpec, width: int) -> None:
    """Check the width of target features against the drafter's taps.

    Raises:
        FeedError: names both sizes and the likely cause.
    """
    if width == spec.feature_size:
        return
    taps = len(spec.target_layer_ids)
    wholes, rest = divmod(width, spec.target_hidden_size)
    found = (
        f"{wholes} layers of {spec.target_hidden_size}"
        if not rest
        else (f"hidden size {width // taps}" if width % taps == 0 else "no whole number of layers")
    )
    raise FeedError(
        f"target features have width {width} ({found}), expected {spec.feature_size} = "
        f"{taps} layers {list(spec.target_layer_ids)} of {spec.target_hidden_size}",
        hint="the target lacks a tapped layer, or is not the one this drafter was trained with",
    )
