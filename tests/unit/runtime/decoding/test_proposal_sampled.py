"""Drafts as draws: from the distribution that is stated, and harmless to the target's own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import FeedError, UnsupportedError
from draftrt.runtime.backends.base import Arrays
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import (
    DraftDistribution,
    Proposal,
    Sampler,
    confident_length,
    propose,
    realised,
    sampler_of,
)
from draftrt.signature import Signature, TensorSpec, check_feeds

SAMPLED = DecodeOptions(max_tokens=6, temperature=0.8, proposal="sampled", seed=4)


def with_noise(signature: Signature) -> Signature:
    """The toy drafter's table with noise over its 23 tokens."""
    noise = TensorSpec(name="noise", dtype="float32", shape=(1, 4, 23))
    factor = TensorSpec(name="inverse_temperature", dtype="float32", shape=(1,))
    logits = TensorSpec(name="logits", dtype="float32", shape=(1, 4, 23))
    return replace(
        signature,
        inputs=(*signature.inputs[:3], noise, factor, *signature.inputs[3:]),
        outputs=(signature.outputs[0], logits, *signature.outputs[1:]),
    )


class NoisySession:
    """A drafter's graph over fixed logits, which draws as an exported one does."""

    def __init__(self, signature: Signature, logits: NDArray[np.float32]) -> None:
        self.signature = signature
        self.logits = logits
        self.fed: list[Arrays] = []

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        fed = replace(self.signature, inputs=self.signature.inputs[:5])
        check_feeds(fed, feeds)
        self.fed.append({name: array.copy() for name, array in feeds.items()})
        chosen = (self.logits * feeds["inverse_temperature"] + feeds["noise"][0]).argmax(-1)
        outputs = {"draft_ids": chosen[None], "logits": self.logits[None]}
        return {name: array for name, array in outputs.items() if name not in unwanted}

    def close(self) -> None:
        pass

    def __enter__(self) -> NoisySession:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def noisy(toy: SimpleNamespace) -> tuple[DraftSession, NoisySession]:
    logits = np.random.default_rng(8).normal(scale=2, size=(4, 23)).astype(np.float32)
    session = NoisySession(with_noise(toy.signature(4, 5, 60, confidence=False)), logits)
    return DraftSession(toy.spec(), session), session


def features(count: int = 1) -> NDArray[np.float32]:
    return np.zeros((1, count, 6), np.float32)


def test_argmax_drafts_of_a_sampled_graph_feed_no_noise_and_fetch_no_logits(
    noisy: tuple[DraftSession, NoisySession],
) -> None:
    drafter, session = noisy
    proposal = propose(drafter, 3, features())
    assert proposal.token_ids.tolist() == session.logits.argmax(-1).tolist()
    assert proposal.distribution is None
    assert not session.fed[0]["noise"].any()
    assert session.fed[0]["inverse_temperature"].tolist() == [1.0]


def test_drawn_drafts_come_with_the_softmax_of_the_scaled_logits_in_float64(
    noisy: tuple[DraftSession, NoisySession],
) -> None:
    drafter, session = noisy
    proposal = propose(drafter, 3, features(), Sampler(0.5, np.random.default_rng(0)))
    assert session.fed[0]["inverse_temperature"].tolist() == [2.0]
    assert proposal.token_ids.tolist() != session.logits.argmax(-1).tolist()
    q = proposal.distribution
    assert q is not None
    assert q.probabilities.dtype == np.float64
    weights = np.exp(session.logits.astype(np.float64) / 0.5)
    assert np.allclose(q.probabilities, weights / weights.sum(-1, keepdims=True), rtol=1e-12)
    assert q.candidate_ids is None


def test_the_requests_seed_decides_the_noise(noisy: tuple[DraftSession, NoisySession]) -> None:
    drafter, session = noisy
    for seed in (1, 1, 2):
        propose(drafter, 3, features(), Sampler(0.5, np.random.default_rng(seed)))
    one, same, other = (feeds["noise"] for feeds in session.fed)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.dtype == np.float32


def test_noise_is_gumbel_and_finite() -> None:
    """Mean gamma, variance pi^2 / 6: 5 standard errors each, so one run in a million fails."""
    noise = Sampler(1.0, np.random.default_rng(6)).walk((1, 400, 500))["noise"].astype(np.float64)
    assert np.isfinite(noise).all()
    error = np.sqrt(np.pi**2 / 6 / noise.size)
    assert abs(noise.mean() - np.euler_gamma) < 5 * error
    assert abs(noise.var() - np.pi**2 / 6) < 5 * np.sqrt(4.4 / noise.size) * np.pi**2 / 6

    class Never(np.random.Generator):
        def standard_exponential(self, *args: object, **kwargs: object) -> Any:
            return np.zeros((1, 1, 2))

    assert np.isfinite(Sampler(1.0, Never(np.random.PCG64(0))).walk((1, 1, 2))["noise"]).all()


def test_reduced_and_sparse_distributions_are_over_target_ids() -> None:
    logits = np.log(np.array([[[1.0, 3.0]], [[1.0, 1.0]]], np.float32)).reshape(1, 2, 2)
    reduced = realised({"logits": logits, "vocabulary_ids": np.array([[7, 2]])}, 1.0)
    assert [reduced.probability(0, token) for token in (7, 2, 0)] == pytest.approx([0.25, 0.75, 0])
    ids = np.array([[[5, 1], [0, 5]]])
    sparse = realised({"candidate_scores": logits, "candidate_ids": ids}, 1.0)
    assert [sparse.probability(0, token) for token in (5, 1)] == pytest.approx([0.25, 0.75])
    assert [sparse.probability(1, token) for token in (5, 1)] == pytest.approx([0.5, 0])


def test_a_target_with_more_ids_than_can_be_drafted_keeps_them() -> None:
    """Padded rows are left out of a drafter's logits, but a target may have them."""
    q = DraftDistribution(probabilities=np.array([[0.5, 0.5, 0.0]]))
    rest = q.subtract(0, np.array([0.6, 0.1, 0.1, 0.2]))
    assert rest.tolist() == pytest.approx([0.1, 0.0, 0.1, 0.2])


def test_what_is_left_of_the_target_is_at_the_ids_of_the_candidates() -> None:
    q = DraftDistribution(
        probabilities=np.array([[0.75, 0.25], [0.5, 0.5]]), candidate_ids=np.array([[3, 0], [1, 2]])
    )
    p = np.array([0.5, 0.25, 0.125, 0.125])
    assert q.subtract(0, p).tolist() == [0.25, 0.25, 0.125, 0.0]
    assert q.subtract(1, p).tolist() == [0.5, 0.0, 0.0, 0.125]
    assert p.tolist() == [0.5, 0.25, 0.125, 0.125]  # the caller's own


def test_noise_of_another_shape_is_refused(noisy: tuple[DraftSession, NoisySession]) -> None:
    drafter, session = noisy
    walk = {"noise": np.zeros((1, 4, 22), np.float32), "inverse_temperature": np.ones(1, "f4")}
    with pytest.raises(FeedError, match=r"noise: got shape \[1, 4, 22\], expected \[1, 4, 23\]"):
        drafter.draft(3, features(), walk)
    assert session.fed == []
    assert drafter.context_length == 0


def test_a_graph_without_noise_cannot_draw_and_the_error_names_the_flag(
    toy: SimpleNamespace,
) -> None:
    session = toy.session(toy.signature(4, 5, 60, confidence=False))
    decoder = DecodeLoop(toy.target(), DraftSession(toy.spec(), session))
    with pytest.raises(UnsupportedError, match="no input 'noise'") as refusal:
        decoder.decode([1, 2], SAMPLED)
    assert "--sampled" in refusal.value.hint
    assert session.offered == []


def test_a_proposal_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"proposal is 'beam', expected one of \['argmax', 'samp"):
        DecodeOptions(proposal="beam")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [SAMPLED, replace(SAMPLED, temperature=0.0)])
def test_only_a_temperature_makes_drafts_draws(
    toy: SimpleNamespace, noisy: tuple[DraftSession, NoisySession], options: DecodeOptions
) -> None:
    drafter, session = noisy
    rounds = list(DecodeLoop(toy.target(), drafter).decode([1, 2], options))
    assert len([token for one in rounds for token in one.token_ids]) == 6
    is_drawn = [bool(feeds["noise"].any()) for feeds in session.fed]
    assert is_drawn == [not options.is_greedy] * len(session.fed)
    if options.is_greedy:
        text = [token for one in rounds for token in one.token_ids]
        assert text == toy.greedy([1, 2], 6)


@pytest.mark.parametrize(
    ("temperature", "is_drawn"), [(0.0, False), (0.9e-3, False), (1e-3, True), (0.04, True)]
)
def test_drafts_are_drawn_from_a_thousandth_on(temperature: float, is_drawn: bool) -> None:
    rng = np.random.default_rng(0)
    found = sampler_of(DecodeOptions(temperature=temperature, proposal="sampled"), rng)
    assert (found is not None) is is_drawn
    assert found is None or (found.temperature, found.rng) == (temperature, rng)
    assert sampler_of(DecodeOptions(temperature=temperature), rng) is None


@pytest.mark.parametrize(
    ("threshold", "length"),
    [(0.0, 4), (0.125, 4), (0.25, 4), (0.375, 3), (0.5, 3), (0.625, 1), (0.75, 1), (0.875, 0)],
)
def test_a_draft_as_sure_as_the_threshold_is_verified(threshold: float, length: int) -> None:
    sure = np.array([0.75, 0.5, 0.75, 0.25], np.float32)
    q = DraftDistribution(probabilities=np.full((4, 2), 0.5))
    whole = Proposal(token_ids=np.array([5, 6, 7, 8]), confidences=sure, distribution=q)
    assert confident_length(whole, threshold) == length
    first = whole.head(length)
    assert first.token_ids.tolist() == [5, 6, 7, 8][:length]
    assert first.confidences is not None
    assert first.confidences.tolist() == sure[:length].tolist()
    assert first.distribution is q
    assert confident_length(replace(whole, confidences=None), threshold) == 4
