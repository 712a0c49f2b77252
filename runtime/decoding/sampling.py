"""A row of target logits to the distribution that is sampled from, in pure NumPy.

The order is that of transformers: repetition penalty, forbidden tokens, temperature, top-k, top-p,
min-p. Everything is computed in float64, so that rejection sampling subtracts exact quantities.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from draftrt.runtime.decoding.options import DecodeOptions

NUCLEUS_GUESS = 1024  # tokens sorted before the whole vocabulary is, for top-p


def adjusted_scores(
    logits: NDArray[np.float32],
    options: DecodeOptions,
    seen: NDArray[np.bool_] | None,
    forbidden: Iterable[int],
) -> NDArray[np.float64]:
    """Apply what changes even a greedy choice: repetition penalty and forbidden tokens.

    Args:
        logits: [V] float32.
        options: the penalty is taken from here.
        seen: [V] bool, tokens that occur in prompt or text; None while there is no penalty.
        forbidden: ids that must not be chosen.

    Returns:
        [V] float64.
    """
    scores = logits.astype(np.float64)
    if seen is not None and options.repetition_penalty != 1:
        past = scores[seen]
        scores[seen] = np.where(
            past > 0, past / options.repetition_penalty, past * options.repetition_penalty
        )
    scores[[token for token in forbidden if token < scores.size]] = -np.inf
    return scores


def probabilities(scores: NDArray[np.float64], options: DecodeOptions) -> NDArray[np.float64]:
    """Return the distribution after temperature and filters, [V] float64, sum 1.

    Args:
        scores: [V] float64 from `adjusted_scores`.
        options: temperature above 0, top-k, top-p, min-p.
    """
    with np.errstate(over="ignore"):  # near temperature 0 all but the largest become minus infinity
        scores = (scores - scores.max()) / options.temperature
    if 0 < options.top_k < scores.size:
        kth = np.partition(scores, -options.top_k)[-options.top_k]
        scores = np.where(scores < kth, -np.inf, scores)
    weights = np.exp(scores)
    weights /= weights.sum()
    if options.top_p < 1:
        weights = _keep_nucleus(weights, options.top_p)
    if options.min_p > 0:
        weights[weights < options.min_p * weights.max()] = 0.0
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def _keep_nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """Zero all but the fewest most probable tokens that reach ``top_p`` together."""
    order = _largest(weights, NUCLEUS_GUESS)
    if weights[order].sum() < top_p:
        order = _largest(weights, weights.size)
    num_kept = int(np.searchsorted(np.cumsum(weights[order]), top_p)) + 1
    kept = np.zeros_like(weights)
    kept[order[:num_kept]] = weights[order[:num_kept]]
    return kept


def _largest(weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the ids of the ``count`` largest weights, largest first."""
    ids = np.arange(weights.size)
    if count < weights.size:
        ids = np.argpartition(weights, -count)[-count:]
    order: NDArray[np.int64] = ids[np.argsort(-weights[ids], kind="stable")]
    return order
