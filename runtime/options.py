"""What a caller can ask of one decoding, in tokens; text-level wishes live in `pair`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

MOST_THREADS = 1024  # more is a slip of the hand
ProposalKind = Literal["argmax", "sampled"]
PROPOSALS: tuple[ProposalKind, ...] = get_args(ProposalKind)
ScheduleKind = Literal["all", "survival"]
SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Options of one decoding. Defaults are greedy, as many tokens as fit.

    The filters apply to the target's distribution in the order repetition penalty, temperature,
    top-k, top-p, min-p (as in transformers); drafting only changes the speed, never the result.

    Attributes:
        max_tokens: most new tokens; None for as many as the caches hold.
        min_tokens: no stop token before that many new tokens.
        stop_ids: ids that end the text, themselves included in it; None for those of the bundle.
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 is off.
        top_p: keep the smallest set with at least this probability; 1 is off.
        min_p: drop tokens below this share of the most probable one's probability; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of every token that
            occurs in prompt or text; 1 is off.
        seed: makes sampling reproducible; None draws a fresh one.
        confidence_threshold: verify only the drafts before the first confidence below it; 0 is off.
        schedule: verify all drafts, or as many as pay by their confidences and the costs that
            were measured for the bundle (`draftrt.runtime.schedule`).
        proposal: how drafts are chosen: the most probable ones, or draws at this temperature.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_ids: frozenset[int] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    confidence_threshold: float = 0.0
    schedule: ScheduleKind = "all"
    proposal: ProposalKind = "argmax"

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ValueError: names the option, its value and its range.
        """
        ranges = {
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            "min_tokens": (self.min_tokens >= 0, "at least 0"),
            "temperature": (self.temperature >= 0, "at least 0"),
            "top_k": (self.top_k >= 0, "at least 0"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p < 1, "at least 0 and below 1"),
            "repetition_penalty": (self.repetition_penalty > 0, "above 0"),
            "confidence_threshold": (0 <= self.confidence_threshold <= 1, "between 0 and 1"),
            "schedule": (self.schedule in SCHEDULES, f"one of {list(SCHEDULES)}"),
            "proposal": (self.proposal in PROPOSALS, f"one of {list(PROPOSALS)}"),
        }
        for name, (is_right, expected) in ranges.items():
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {expected}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0
