"""The target's distribution after penalty, temperature and filters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.runtime.decoding.acceptance import NUCLEUS_GUESS, adjusted_scores, probabilities
from draftrt.runtime.decoding.options import DecodeOptions

LOGITS = np.array([1.0, 3.0, -2.0, 2.5, 0.0, 3.0, -1.0], np.float32)


def slow(scores: list[float], options: DecodeOptions) -> list[float]:
    """The definitions, in loops over plain floats."""
    scaled = [score / options.temperature for score in scores]
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    allowed = set(order)
    if options.top_k:
        kth = scaled[order[min(options.top_k, len(order)) - 1]]
        allowed = {token for token in order if scaled[token] >= kth}
    mass = {token: math.exp(scaled[token] - max(scaled)) for token in allowed}
    share = {token: weight / sum(mass.values()) for token, weight in mass.items()}
    before, nucleus = 0.0, set()
    for token in [token for token in order if token in allowed]:
        if before < options.top_p:
            nucleus.add(token)
        before += share[token]
    kept = {
        token: share[token]
        for token in nucleus
        if share[token] >= options.min_p * max(share.values())
    }
    total = sum(kept.values())
    return [kept.get(token, 0.0) / total for token in range(len(scores))]


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(temperature=1.0),
        DecodeOptions(temperature=0.3),
        DecodeOptions(temperature=2.0, top_k=3),
        DecodeOptions(temperature=1.0, top_k=1),  # a tie: both stay
        DecodeOptions(temperature=1.0, top_k=50),
        DecodeOptions(temperature=1.0, top_p=0.5),
        DecodeOptions(temperature=1.0, top_p=0.999),
        DecodeOptions(temperature=1.0, top_p=1e-9),
        DecodeOptions(temperature=1.0, min_p=0.2),
        DecodeOptions(temperature=0.8, top_k=4, top_p=0.8, min_p=0.3),
    ],
    ids=lambda options: ",".join(
        f"{name}={getattr(options, name)}" for name in ("temperature", "top_k", "top_p", "min_p")
    ),
)
def test_filters_follow_their_definitions(options: DecodeOptions) -> None:
    scores = LOGITS.astype(np.float64)
    found = probabilities(scores, options)
    np.testing.assert_allclose(found, slow(scores.tolist(), options), rtol=1e-12)
    assert scores.tolist() == LOGITS.tolist(), "the caller's scores were changed"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DecodeOptions(temperature=1.0, top_k=2), [2, 1, 1]),  # as likely as the last one kept
        (DecodeOptions(temperature=1.0, top_p=0.5), [1, 0, 0]),  # the first reaches it exactly
        (DecodeOptions(temperature=1.0, top_p=0.75), [2, 1, 0]),
        (DecodeOptions(temperature=1.0, top_p=0.76), [2, 1, 1]),
        (DecodeOptions(temperature=1.0, min_p=0.5), [2, 1, 1]),  # not below that share
        (DecodeOptions(temperature=1.0, min_p=0.51), [1, 0, 0]),
        (DecodeOptions(temperature=0.5, min_p=0.25), [4, 1, 1]),
        (DecodeOptions(temperature=0.5, min_p=0.5), [1, 0, 0]),  # the temperature comes first
        (DecodeOptions(temperature=0.5, top_p=0.6), [1, 0, 0]),
    ],
    ids=lambda options: str(options) if isinstance(options, list) else "",
)
def test_a_token_at_the_edge_of_a_filter(options: DecodeOptions, expected: list[int]) -> None:
    """Shares of 1/2, 1/4, 1/4, which floating point holds exactly."""
    found = probabilities(np.array([0.0, -math.log(2), -math.log(2)]), options)
    np.testing.assert_allclose(found, np.array(expected) / sum(expected), rtol=1e-12)


@pytest.mark.parametrize("spread", [0.01, 3.0], ids=["flat: full sort", "peaked: few tokens"])
def test_the_nucleus_of_a_large_vocabulary_is_the_fewest_likeliest_tokens(spread: float) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(0, spread, 4 * NUCLEUS_GUESS)
    options = DecodeOptions(temperature=1.0, top_p=0.9)
    found = probabilities(scores, options)
    whole = np.exp(scores - scores.max())
    whole /= whole.sum()
    ranked = np.sort(whole)[::-1]
    num_kept = np.count_nonzero(found)
    assert ranked[:num_kept].sum() >= 0.9 > ranked[: num_kept - 1].sum()
    assert set(np.flatnonzero(found)) == set(np.argsort(-whole)[:num_kept])


def test_the_repetition_penalty_makes_every_seen_token_less_likely() -> None:
    seen = np.zeros(LOGITS.size, np.bool_)
    seen[[1, 2, 4]] = True
    found = adjusted_scores(LOGITS, DecodeOptions(repetition_penalty=2.0), seen, ())
    assert found.tolist() == [1.0, 1.5, -4.0, 2.5, 0.0, 3.0, -1.0]


def test_a_forbidden_token_has_probability_zero() -> None:
    scores = adjusted_scores(LOGITS, DecodeOptions(temperature=1.0), None, {1, 5})
    found = probabilities(scores, DecodeOptions(temperature=1.0))
    assert found[[1, 5]].tolist() == [0.0, 0.0]
    assert found.sum() == pytest.approx(1.0, rel=1e-15)


def test_penalty_and_filters_equal_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    rng = np.random.default_rng(2)
    for _ in range(20):
        logits: NDArray[np.float32] = rng.normal(0, 3, 300).astype(np.float32)
        text = rng.integers(300, size=40)
        options = DecodeOptions(
            temperature=0.7, top_k=40, top_p=0.8, min_p=0.02, repetition_penalty=1.3
        )
        scores = torch.from_numpy(logits)[None].double()
        for process in (
            theirs.RepetitionPenaltyLogitsProcessor(1.3),
            theirs.TemperatureLogitsWarper(0.7),
            theirs.TopKLogitsWarper(40),
            theirs.TopPLogitsWarper(0.8),
            theirs.MinPLogitsWarper(0.02),
        ):
            scores = process(torch.from_numpy(text)[None], scores)
        seen = np.zeros(300, np.bool_)
        seen[text] = True
        mine = probabilities(adjusted_scores(logits, options, seen, ()), options)
        np.testing.assert_allclose(mine, scores.softmax(-1)[0].numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("confidence_threshold", 1.5),
    ],
)
def test_an_option_out_of_range_is_named_with_its_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {value}, expected "):
        DecodeOptions(**{name: value})  # type: ignore[arg-type]
