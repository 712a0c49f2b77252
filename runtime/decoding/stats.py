"""What speculation brought: acceptance and times, from rounds.

Only drafted rounds count for acceptance: the token that prefill yields, and rounds of plain
decoding, say nothing about a drafter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length"]
Source = Literal["drafter", "text", "none"]  # of a round's drafts


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target thought of a token.

    Attributes:
        token_id: the token.
        logprob: its log probability.
        top: the likeliest tokens and theirs, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: draft, verify, commit. Round 0 is the prefill, which drafts nothing.

    Attributes:
        index: number of the round in its sequence, from 0.
        token_ids: tokens committed, cut at a stop token or at the wanted length.
        draft_ids: tokens that were offered.
        num_verified: how many of them the target was asked about.
        num_accepted: how many it kept; the bonus token and the cut are not counted.
        source: of the drafts: ``drafter``, ``text`` where they followed the same tokens before, or
            ``none`` without drafts.
        reused_tokens: of the prefill, tokens of the prompt that were not computed again.
        confidences: of ``draft_ids``; None without a confidence head.
        draft_s: seconds in the drafter.
        verify_s: seconds in the target.
        host_s: seconds in between: acceptance, bookkeeping, copies.
        finish: why decoding ended with this round; None when it goes on.
        logprobs: of ``token_ids``, where they were asked for.
    """

    index: int
    token_ids: tuple[int, ...]
    draft_ids: tuple[int, ...] = ()
    num_verified: int = 0
    num_accepted: int = 0
    source: Source = "none"
    reused_tokens: int = 0
    confidences: tuple[float, ...] | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def is_prefill(self) -> bool:
        """Whether this is the prompt's own round."""
        return self.index == 0


@dataclass(slots=True)
class Stats:
    """Sums over rounds.

    Attributes:
        num_tokens: tokens committed, the prefill's included.
        reused_tokens: tokens of the prompt that were not computed again.
        accepted: kept drafts of each drafted round.
        verified: drafts sent to verification in each drafted round.
        lookups: drafted rounds whose drafts were found in the text.
        plain_rounds: rounds without drafts.
        prefill_s: seconds to the first token.
        draft_s: seconds in the drafter, after the prefill.
        verify_s: seconds in the target, after the prefill.
        host_s: seconds in between, after the prefill.
    """

    num_tokens: int = 0
    reused_tokens: int = 0
    accepted: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    lookups: int = 0
    plain_rounds: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Stats:
        """Sum up rounds."""
        stats = cls()
        for one in rounds:
            stats.add(one)
        return stats

    def add(self, one: Round) -> None:
        """Count one round."""
        self.num_tokens += len(one.token_ids)
        if one.is_prefill:
            self.reused_tokens += one.reused_tokens
            self.prefill_s += one.draft_s + one.verify_s + one.host_s
            return
        self.draft_s += one.draft_s
        self.verify_s += one.verify_s
        self.host_s += one.host_s
        if not one.draft_ids:
            self.plain_rounds += 1
            return
        self.lookups += one.source == "text"
        self.accepted.append(one.num_accepted)
        self.verified.append(one.num_verified)

    @property
    def num_rounds(self) -> int:
        """Drafted rounds."""
        return len(self.accepted)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a drafted round commits, bonus included (τ); 0 without such a round."""
        return sum(self.accepted) / self.num_rounds + 1 if self.accepted else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of verified drafts that were kept; 0 without any."""
        return sum(self.accepted) / sum(self.verified) if any(self.verified) else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Per draft position, kept drafts over drafts sent to verification there."""
        counts = []
        for position in range(max(self.verified, default=0)):
            sent = sum(length > position for length in self.verified)
            kept = sum(length > position for length in self.accepted)
            counts.append(kept / sent)
        return tuple(counts)

    @property
    def decode_s(self) -> float:
        """Seconds in all rounds after the prefill."""
        return self.draft_s + self.verify_s + self.host_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second after the prefill, whose own token is not counted; 0 without any."""
        return (self.num_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0

    def others(self) -> str:
        """Return which rounds had no drafts of the drafter, in words; empty where all had."""
        beside = f", {self.lookups} of them by the text itself" if self.lookups else ""
        return beside + (f", {self.plain_rounds} more without drafts" if self.plain_rounds else "")

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON data."""
        return {
            "num_tokens": self.num_tokens,
            "reused_tokens": self.reused_tokens,
            "num_rounds": self.num_rounds,
            "lookups": self.lookups,
            "plain_rounds": self.plain_rounds,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": list(self.acceptance_by_position),
            "prefill_s": self.prefill_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "host_s": self.host_s,
            "tokens_per_s": self.tokens_per_s,
        }

    def summary(self) -> str:
        """Return the figures as lines for people."""
        lines = [
            f"{self.num_tokens} tokens; first after {self.prefill_s * 1e3:.1f} ms, then "
            f"{self.tokens_per_s:.1f} tokens/s"
        ]
        if self.reused_tokens:
            lines.append(f"{self.reused_tokens} tokens of the prompt were held already")
        if self.accepted:
            positions = " ".join(f"{share:.2f}" for share in self.acceptance_by_position)
            lines.append(
                f"acceptance length {self.acceptance_length:.2f} over "
                f"{self.num_rounds} rounds{self.others()}; by position {positions}"
            )
            rounds = self.num_rounds + self.plain_rounds
            each = [1e3 * part / rounds for part in (self.draft_s, self.verify_s, self.host_s)]
            lines.append("a round: draft {:.2f} ms, verify {:.2f} ms, host {:.2f} ms".format(*each))
        return "\n".join(lines)
