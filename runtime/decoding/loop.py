"""The loop: draft, verify, commit, as a generator of rounds.

All that a sequence is stands in one immutable record, replaced in one step when a round is done.
Both caches are brought back to that record before each round, so a generator that is closed, or
interrupted inside a model, costs nothing but its unfinished round: `DecodeLoop.resume` goes on from
there, `DecodeLoop.decode` starts anew, behind what the caches hold of the prompt already where the
loop was given notes of that (`draftrt.runtime.decoding.reuse`). The caches know which sequence they
hold, so that of two that are decoded by turns the older one ends with an error and never with the
other's text. Not for several threads at once: `draftrt.runtime.pair.Pair` lets them wait for each
other. Knows no text and no model.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from draftrt.errors import BusyError, FeedError, UnsupportedError
from draftrt.manifest import Costs
from draftrt.runtime.decoding.acceptance import Chooser, logprobs_of
from draftrt.runtime.decoding.drafter import DraftSession, check_feature_size
from draftrt.runtime.decoding.grammar import GrammarMatcher
from draftrt.runtime.decoding.lookup import TextIndex
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.pace import Pace
from draftrt.runtime.decoding.proposal import (
    Proposal,
    check_confidence,
    check_proposal,
    confident_length,
    propose,
    sampler_of,
)
from draftrt.runtime.decoding.reuse import Committed, Holdings, Start
from draftrt.runtime.decoding.schedule import survival_length
from draftrt.runtime.decoding.stats import FinishReason, Round, Source
from draftrt.runtime.decoding.turns import ONE_TEXT, claim
from draftrt.runtime.targets.base import Target, TargetRows

NOTHING = Proposal(token_ids=np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Offer:
    """The drafts of a round.

    Attributes:
        proposal: the drafts.
        source: of them.
        length: how many to verify at most, where the schedule chose; None elsewhere.
        agreed: last tokens that stood in the text before, where it chose.
    """

    proposal: Proposal
    source: Source
    length: int | None = None
    agreed: int = 0


def paces(options: DecodeOptions) -> bool:
    """Whether rounds are chosen by what they bring.

    Times are never twice the same, and a draw depends on the drafts that were made: what a seed
    shall repeat takes the drafts of every round.
    """
    return options.schedule == "auto" and (options.is_greedy or options.seed is None)


class DecodeLoop:
    """Decodes one sequence at a time with a target and, if there is one, a drafter.

    Attributes:
        target: whose output it is.
        drafter: makes it faster; None decodes plainly.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftSession | None = None,
        costs: Costs | None = None,
        *,
        held: Holdings | None = None,
    ) -> None:
        """Pair a target with a drafter.

        Args:
            target: whose output it is.
            drafter: makes it faster.
            costs: measured times of both, for the schedule that weighs them.
            held: notes of what the caches hold, shared by the loops over them; None computes every
                prompt from its first token on.

        Raises:
            FeedError: the target's features have another width than the drafter takes.
        """
        if drafter is not None:
            check_feature_size(drafter.spec, target.feature_size)
        self.target = target
        self.drafter = drafter
        self._round_ms: tuple[float, ...] = ()
        if costs is not None and drafter is not None:
            self._round_ms = costs.rounds(drafter.spec.num_draft_tokens)
        self._pace = Pace(self._most_drafts, costs)
        self._text = TextIndex()
        self._held = held
        self._committed: Committed | None = None
        self._rng = np.random.default_rng()
        self._run = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and text of the present sequence; empty before the first."""
        return self._committed.token_ids if self._committed else ()

    @property
    def most_tokens(self) -> int:
        """Tokens that fit, prompt and text together."""
        if self.drafter is None:
            return self.target.max_context + 1
        # The last round starts, at the latest, with one token missing. Its anchor is the token
        # before, and from the anchor's row on there must be a block in one cache and the rows to
        # verify in the other.
        verified = self.target.max_context - self.drafter.spec.num_draft_tokens
        return min(verified, self.drafter.capacity - self.drafter.spec.block_size + 1) + 1

    @property
    def held(self) -> str:
        """What the caches hold, in words."""
        held = f"the caches hold target {self.target.max_context} rows"
        held += f", drafter {self.drafter.capacity} rows" if self.drafter else ""
        return f"{held}, the last block included"

    def decode(
        self,
        prompt_ids: Sequence[int],
        options: DecodeOptions,
        grammar: GrammarMatcher | None = None,
    ) -> Generator[Round, None, None]:
        """Start a new sequence and return its rounds, the prefill's first.

        Args:
            prompt_ids: at least one token.
            options: ``stop_ids`` None means no stop token.
            grammar: what the output obeys, at its beginning; None: anything.

        Raises:
            FeedError: no prompt, or no room for it and the wanted tokens; nothing has run.
            UnsupportedError: a confidence threshold or a schedule without a confidence head, a
                schedule without measured costs, or drawn drafts from a graph that takes no noise.
        """
        if len(prompt_ids) == 0:
            raise FeedError("the prompt has no tokens, expected at least 1")
        limit = self._limit(len(prompt_ids), options)
        return self._rounds(tuple(prompt_ids), options, limit, grammar)

    def resume(self, options: DecodeOptions) -> Generator[Round, None, None]:
        """Return further rounds of the present sequence; lengths in ``options`` count from here.

        Raises:
            FeedError: there is no sequence, or the wanted tokens do not fit the caches.
        """
        if self._committed is None:
            raise FeedError("there is no sequence to go on with", hint="start one with a prompt")
        limit = self._limit(len(self._committed.token_ids), options)
        return self._rounds(None, options, limit)

    def _limit(self, num_committed: int, options: DecodeOptions) -> int:
        """Return how many new tokens are wanted, after checking that they fit."""
        if self.drafter is not None:
            check_confidence(self.drafter.spec, options)
            check_proposal(self.drafter, options)
            self._check_schedule(options)
        most = max(self.most_tokens - num_committed, 0)
        wanted = options.max_tokens or max(most, 1)
        if wanted > most:
            raise FeedError(
                f"got {num_committed} tokens and {wanted} wanted behind them, expected at "
                f"most {most} more: {self.held}",
                hint=f"{'ask for fewer tokens' if most else 'shorten the prompt'}, or export "
                "with a larger --max-context",
            )
        return wanted

    def _check_schedule(self, options: DecodeOptions) -> None:
        if options.schedule == "survival" and not self._round_ms:
            raise UnsupportedError(
                "schedule 'survival': no costs were measured for this bundle on this backend with "
                "these threads",
                hint="measure them with `draftrt bench BUNDLE --calibrate`",
            )

    def _worth_verifying(self, offered: Offer, options: DecodeOptions) -> Proposal:
        """Return the drafts that the options want verified; any cut looks at earlier ones only."""
        proposal = offered.proposal
        proposal = proposal.head(confident_length(proposal, options.confidence_threshold))
        if offered.length is not None:
            sure = proposal.confidences
            length = min(offered.length, len(proposal.token_ids))
            return proposal.head(self._pace.cut(None if sure is None else sure.tolist(), length))
        if options.schedule == "survival" and proposal.confidences is not None:
            return proposal.head(survival_length(proposal.confidences.tolist(), self._round_ms))
        return proposal

    def _rounds(
        self,
        prompt_ids: tuple[int, ...] | None,
        options: DecodeOptions,
        limit: int,
        grammar: GrammarMatcher | None = None,
    ) -> Generator[Round, None, None]:
        self._run += 1
        run, num_new = self._run, 0
        if prompt_ids is not None:
            self._rng = np.random.default_rng(options.seed)
        chooser = Chooser(options, self._rng, grammar)
        while True:
            if run != self._run:
                raise BusyError("another decoding was started on this decoder", hint=ONE_TEXT)
            if prompt_ids is not None:
                one, prompt_ids = self._prefill(prompt_ids, chooser, options, limit), None
            else:
                one = self._round(chooser, options, num_new, limit - num_new)
            num_new += len(one.token_ids)
            yield one
            if one.finish:
                return

    def _prefill(
        self, prompt_ids: tuple[int, ...], chooser: Chooser, options: DecodeOptions, room: int
    ) -> Round:
        started = perf_counter()
        self._committed = None
        self._pace.begin()
        start = self._start(prompt_ids, options)
        begun = Committed(
            token_ids=prompt_ids[: start.length + 1],
            context_length=start.context_length,
            features=start.features,
            num_rounds=1,
            generation=claim(self.target, self.drafter),
        )
        self._note(begun)  # what a prefill that is broken off leaves
        rows = self._feed(prompt_ids, start, want_logits=chooser.want_logits)
        verified = perf_counter()
        token = chooser.accept(NOTHING, rows, prompt_ids, 0).bonus
        tokens, finish = _cut([token], options, room, chooser.grammar)
        features = [one for one in (start.features, rows.features) if one.shape[1]]
        self._committed = replace(
            begun,
            token_ids=(*prompt_ids, token),
            features=np.concatenate(features, axis=1) if len(features) > 1 else rows.features,
        )
        self._note(self._committed)
        return Round(
            index=0,
            token_ids=tokens,
            reused_tokens=start.length,
            verify_s=verified - started,
            host_s=perf_counter() - verified,
            finish=finish,
            logprobs=logprobs_of(rows, tokens, options.logprobs),
        )

    def _start(self, prompt_ids: tuple[int, ...], options: DecodeOptions) -> Start:
        """Return where the prompt begins, the target rolled back to there."""
        if self._held is not None and options.reuse_prefix:
            return self._held.start(prompt_ids, self.target, self.drafter)
        self.target.rollback(0)
        return Start.cold(self.target)

    def _note(self, now: Committed) -> None:
        if self._held is not None:
            self._held.note(now, self.drafter)

    def _feed(self, prompt_ids: tuple[int, ...], start: Start, *, want_logits: bool) -> TargetRows:
        """Compute what is left of a prompt; keep the way back to its end, and to where it parts.

        A beginning that two prompts share may come a third time.
        """
        token_ids = np.array(prompt_ids[start.length :], np.int64)
        parting = start.shared - start.length
        if parting <= 0 or self.target.rewinds == "any":
            rows = self.target.prefill(token_ids, want_logits=want_logits)
        else:
            first = self.target.prefill(token_ids[:parting])
            self.target.keep()
            rows = self.target.prefill(token_ids[parting:], want_logits=want_logits)
            features = np.concatenate([first.features, rows.features], axis=1)
            rows = replace(rows, features=features)
        if self._held is not None:
            self.target.keep()
        return rows

    def _round(self, chooser: Chooser, options: DecodeOptions, num_new: int, room: int) -> Round:
        started = perf_counter()
        now = self._restored()
        restored = perf_counter()
        offer = self._offered(now, chooser.grammar, options)
        drafted = perf_counter()
        offered, proposal = offer.proposal, self._worth_verifying(offer, options)
        num_verified = len(proposal.token_ids)
        if chooser.grammar is not None:
            drafts = proposal.token_ids.tolist()
            drafts, num_verified = chooser.grammar.path(drafts, self._most_drafts)
            offered = proposal = proposal.replaced(drafts)
        block = np.concatenate([[now.token_ids[-1]], proposal.token_ids[:num_verified]])
        before_verify = perf_counter()
        rows = self.target.verify(block, want_logits=chooser.want_logits)
        verified = perf_counter()
        outcome = chooser.accept(proposal, rows, now.token_ids, num_new)
        kept = [*proposal.token_ids[: outcome.num_accepted].tolist(), outcome.bonus]
        tokens, finish = _cut(kept, options, room, chooser.grammar)
        self._commit(now, tokens, rows)
        draft_s = 0.0 if self.drafter is None else drafted - restored
        verify_s = verified - before_verify
        if offer.length is not None:
            self._pace.note(
                offer.source,
                agreed=offer.agreed,
                num_verified=num_verified,
                num_accepted=outcome.num_accepted,
                verify_ms=1e3 * verify_s,
                draft_ms=1e3 * draft_s if now.features.shape[1] <= self._most_drafts + 1 else None,
            )
        return Round(
            index=now.num_rounds,
            token_ids=tokens,
            draft_ids=tuple(offered.token_ids.tolist()),
            num_verified=num_verified,
            num_accepted=outcome.num_accepted,
            source=offer.source if len(offered.token_ids) else "none",
            confidences=None
            if offered.confidences is None
            else tuple(offered.confidences.tolist()),
            draft_s=draft_s,
            verify_s=verify_s,
            finish=finish,
            logprobs=logprobs_of(rows, tokens, options.logprobs),
            host_s=perf_counter() - started - draft_s - verify_s,
        )

    def _offered(
        self, now: Committed, grammar: GrammarMatcher | None, options: DecodeOptions
    ) -> Offer:
        """Return the drafts of a round; none where the grammar forces half a block."""
        most = self._most_drafts
        if self.drafter is None or (grammar and 2 * len(grammar.forced(most)) >= most):
            return Offer(NOTHING, "none")
        if not paces(options):
            return Offer(self._drafted(now, options), "drafter")
        agreed, found = 0, list[int]()

        def find() -> tuple[int, int]:
            nonlocal agreed, found
            self._text.follow(now.token_ids)
            agreed, found = self._text.find(most)
            return agreed, len(found)

        choice = self._pace.choose(find)
        proposal = NOTHING
        if choice.source == "text":
            proposal = Proposal(token_ids=np.array(found[: choice.length], np.int64))
        elif choice.source == "drafter":
            proposal = self._drafted(now, options)
        return Offer(proposal, choice.source, choice.length, agreed)

    def _drafted(self, now: Committed, options: DecodeOptions) -> Proposal:
        assert self.drafter is not None
        sampler = sampler_of(options, self._rng)
        return propose(self.drafter, now.token_ids[-1], now.features, sampler)

    @property
    def _most_drafts(self) -> int:
        return 0 if self.drafter is None else self.drafter.spec.num_draft_tokens

    def _restored(self) -> Committed:
        """Bring both caches to the committed sequence, whatever an interrupted round left."""
        now = self._committed
        if now is None:
            raise BusyError("another prompt was begun on this decoder", hint=ONE_TEXT)
        models = (self.target,) if self.drafter is None else (self.target, self.drafter)
        if any(model.generation != now.generation for model in models):
            raise BusyError(
                f"the caches no longer hold this text of {len(now.token_ids)} tokens: another "
                "decoder has used them since",
                hint=ONE_TEXT,
            )
        self.target.rollback(len(now.token_ids) - 1)
        if self.drafter is not None:
            self.drafter.crop(now.context_length)
        held = (self.target.length, self.drafter.context_length if self.drafter else 0)
        if held != (len(now.token_ids) - 1, now.context_length):
            raise BusyError(
                f"target and drafter cache {held} tokens, expected "
                f"{(len(now.token_ids) - 1, now.context_length)}: they were rolled back since",
                hint=ONE_TEXT,
            )
        return now

    def _commit(self, now: Committed, tokens: tuple[int, ...], rows: TargetRows) -> None:
        # Rows 0..len(tokens)-1 of the verification were fed the old anchor and all tokens but the
        # last, which is the new anchor and has no features yet.
        features = rows.features[:, : len(tokens)].copy()
        if self.drafter is not None and self.drafter.context_length == now.context_length:
            features = np.concatenate([now.features, features], axis=1)  # it was not asked
        self._committed = Committed(
            token_ids=now.token_ids + tokens,
            context_length=self.drafter.context_length if self.drafter else 0,
            features=features,
            num_rounds=now.num_rounds + 1,
            generation=now.generation,
        )
        self._note(self._committed)


def _cut(
    tokens: list[int], options: DecodeOptions, room: int, grammar: GrammarMatcher | None
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Cut a round's tokens behind the first stop token, the grammar's end and the wanted length.

    The grammar goes on behind them.
    """
    if grammar is not None:
        grammar.rollback()
        tokens = tokens[: grammar.commit(tokens[:room])]
        if grammar.is_over:
            return tuple(tokens), "stop"
    stop_ids = options.stop_ids or frozenset()
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return tuple(tokens[: index + 1]), "stop"
    return tuple(tokens[:room]), "length" if len(tokens) >= room else None
