"""Which drafts a target keeps, and its own next token: the acceptance rules, in pure NumPy.

From target rows to the tokens of a round: picks the acceptance rule and feeds it row by row.

What a row may say can depend on the text before it (repetition penalty, minimum length), drafts
kept so far included; that text is known here, while the rules in `verify` stay free of it.

Acceptance rules, in pure NumPy: which drafts the target keeps, and its own next token.

Row j of the target speaks about the position of draft j (0-based); the row after the last draft
speaks about the position behind the block. Rows are asked for one at a time and only as long as all
drafts before them were kept, so a rule that looks at the text so far may be evaluated lazily.

A row of target logits to the distribution that is sampled from, in pure NumPy.

The order is that of transformers: repetition penalty, forbidden tokens, temperature, top-k, top-p,
min-p. Everything is computed in float64, so that rejection sampling subtracts exact quantities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftrt.runtime.decoding.grammar import GrammarMatcher
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import DraftDistribution, Proposal
from draftrt.runtime.decoding.stats import TokenLogprobs
from draftrt.runtime.targets.base import TargetRows


class Chooser:
    """Decides the tokens of one sequence under fixed options.

    Attributes:
        want_logits: whether the target's logits are needed beside its most probable tokens.
        grammar: what the output obeys; None: anything.
    """

    def __init__(
        self,
        options: DecodeOptions,
        rng: np.random.Generator,
        grammar: GrammarMatcher | None = None,
    ) -> None:
        self._is_plain = (
            options.is_greedy
            and options.repetition_penalty == 1
            and not (options.min_tokens > 0 and options.stop_ids)
        )
        self.want_logits = not self._is_plain or grammar is not None or options.logprobs is not None
        self._options = options
        self._rng = rng
        self.grammar = grammar

    def accept(
        self, proposal: Proposal, rows: TargetRows, text_ids: Sequence[int], num_new: int
    ) -> Acceptance:
        """Decide how many drafts stay and which token follows them.

        Args:
            proposal: k drafts; none for plain decoding.
            rows: what the target said after the anchor and after each draft, R = k + 1.
            text_ids: prompt and text so far, the anchor included.
            num_new: how many of them are new.
        """
        drafts: list[int] = proposal.token_ids.tolist()
        chosen: list[int] = rows.token_ids.tolist()
        if self._is_plain and self.grammar is None:
            return accept_matching(drafts, chosen.__getitem__)
        view = _RowView(self._options, rows.logits, drafts, text_ids, num_new, self.grammar)
        if self._is_plain:
            return accept_matching(
                drafts, lambda row: view.likeliest(row, int(rows.token_ids[row]))
            )
        if self._options.is_greedy:
            return accept_matching(drafts, lambda row: int(view.scores(row).argmax()))
        return accept_rejection(
            drafts,
            proposal.distribution,
            lambda row: probabilities(view.scores(row), self._options),
            self._rng,
        )


def logprobs_of(
    rows: TargetRows, token_ids: Sequence[int], count: int | None
) -> tuple[TokenLogprobs, ...] | None:
    """Return the log probabilities of a round's tokens: a log softmax of the target's own logits.

    Args:
        rows: what the target said before each of them.
        token_ids: the tokens.
        count: likeliest ones to tell beside each; None: nothing is told.
    """
    if count is None or rows.logits is None:
        return None
    told = []
    for logits, token in zip(rows.logits, token_ids, strict=False):
        wide = logits.astype(np.float64)
        shifted = wide - wide.max()
        found = shifted - np.log(np.exp(shifted).sum())
        best = np.argsort(-found, kind="stable")[:count]
        top = tuple((int(one), float(found[one])) for one in best)
        told.append(TokenLogprobs(int(token), float(found[token]), top))
    return tuple(told)


class _RowView:
    """Adjusted scores of each row, asked for in order."""

    def __init__(
        self,
        options: DecodeOptions,
        logits: NDArray[np.float32] | None,
        drafts: list[int],
        text_ids: Sequence[int],
        num_new: int,
        grammar: GrammarMatcher | None,
    ) -> None:
        if logits is None:
            raise AssertionError("the target was asked for logits and gave none")
        self._options, self._logits, self._drafts, self._num_new = options, logits, drafts, num_new
        self._grammar = grammar
        self._seen: NDArray[np.bool_] | None = None
        if options.repetition_penalty != 1:
            self._seen = np.zeros(logits.shape[1], np.bool_)
            ids = np.asarray(text_ids)
            self._seen[ids[ids < self._seen.size]] = True  # a padded table has rows without logits

    def scores(self, row: int) -> NDArray[np.float64]:
        if self._seen is not None and row:
            self._seen[self._drafts[row - 1]] = True  # kept, or this row would not be asked for
        is_early = self._num_new + row < self._options.min_tokens
        forbidden = (self._options.stop_ids or frozenset()) if is_early else frozenset()
        logits = self._logits[row]
        if self._grammar is None:
            return adjusted_scores(logits, self._options, self._seen, forbidden)
        allowed = self._allowed(row)
        later = allowed.copy()
        later[[token for token in forbidden if token < later.size]] = False
        # A text that the grammar ends here ends here, though it be early.
        scores = adjusted_scores(logits, self._options, self._seen, ())
        scores[~(later if later.any() else allowed)] = -np.inf
        return scores

    def likeliest(self, row: int, token: int) -> int:
        """Return the most probable token that the grammar allows; ``token`` is it of all."""
        assert self._grammar is not None
        self._follow(row)
        if self._grammar.allows(token):
            return token
        allowed = self._grammar.mask(self._logits.shape[1])
        return int(np.where(allowed, self._logits[row], -np.inf).argmax())

    def _follow(self, row: int) -> None:
        if self._grammar is not None and row:
            self._grammar.follow(self._drafts[row - 1])

    def _allowed(self, row: int) -> NDArray[np.bool_]:
        assert self._grammar is not None
        self._follow(row)
        return self._grammar.mask(self._logits.shape[1])


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Outcome of one verification.

    Attributes:
        num_accepted: drafts kept, the bonus token not counted.
        bonus: the target's token behind them; the next round's anchor.
    """

    num_accepted: int
    bonus: int


def accept_matching(draft_ids: Sequence[int], choose: Callable[[int], int]) -> Acceptance:
    """Keep drafts while they are what the target chooses itself.

    Greedy decoding with ``choose`` the argmax; with ``choose`` a draw from the target's
    distribution it is exact-match sampling. Either way the output is the target's own.

    Args:
        draft_ids: n drafts.
        choose: row 0..n to the target's token.
    """
    for row, draft in enumerate(draft_ids):
        chosen = choose(row)
        if chosen != draft:
            return Acceptance(row, chosen)
    return Acceptance(len(draft_ids), choose(len(draft_ids)))


def accept_rejection(
    draft_ids: Sequence[int],
    proposed: DraftDistribution | None,
    distribution: Callable[[int], NDArray[np.float64]],
    rng: np.random.Generator,
) -> Acceptance:
    """Keep draft d with probability min(1, p(d) / q(d)); else draw from what q left of p.

    Every token then has exactly the target's distribution p (Leviathan et al. 2023, Theorem 3.5),
    whatever q is, as long as the drafts were really drawn from q.

    Args:
        draft_ids: n drafts.
        proposed: q of each draft; None for deterministic drafts (q is one-hot).
        distribution: row 0..n to the target's p, [V] float64.
        rng: source of randomness, independent of the drafts.
    """
    for row, draft in enumerate(draft_ids):
        p = distribution(row)
        q = 1.0 if proposed is None else proposed.probability(row, draft)
        if rng.random() * q < p[draft]:
            continue
        rest = _without(draft, p) if proposed is None else proposed.subtract(row, p)
        # q covers p but for rounding: a rejection that could not happen, and p is what is left.
        return Acceptance(row, draw(rest if rest.any() else p, rng))
    return Acceptance(len(draft_ids), draw(distribution(len(draft_ids)), rng))


def draw(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw an index with probability proportional to its weight.

    Args:
        weights: [V] float64, not negative, not all zero.
        rng: source of randomness.
    """
    sums = np.cumsum(weights)
    point = min(rng.random() * sums[-1], np.nextafter(sums[-1], 0.0))  # the product may round up
    # The first sum strictly above the point, so that an index of weight zero is never taken.
    return int(np.searchsorted(sums, point, side="right"))


def _without(token: int, p: NDArray[np.float64]) -> NDArray[np.float64]:
    rest: NDArray[np.float64] = p.copy()
    rest[token] = 0.0
    return rest


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
