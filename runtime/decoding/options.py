"""What a caller can ask of one decoding, in tokens; text-level wishes live in `pair`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from draftrt.errors import OptionError

MOST_PENALTY = 1e6  # of repetition, and its inverse the least: no score overflows
MOST_LOGPROBS = 20
ProposalKind = Literal["argmax", "sampled"]
PROPOSALS: tuple[ProposalKind, ...] = get_args(ProposalKind)
ScheduleKind = Literal["auto", "all", "survival"]
SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Options of one decoding. Defaults are greedy, as many tokens as fit.

    The filters apply to the target's distribution in the order repetition penalty, temperature,
    top-k, top-p, min-p (as in transformers); drafting only changes the speed, never the result.

    Whole and real numbers of NumPy are taken as Python's own.

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
        schedule: ``auto`` takes in each round the drafts that pay by what rounds brought so far,
            the drafter's, some found in the text, or none (`draftrt.runtime.decoding.pace`);
            sampling with a seed takes all, to be repeatable. ``all`` verifies all drafts of the
            drafter, ``survival`` as many as pay by their confidences and the costs that were
            measured for the bundle (`draftrt.runtime.decoding.schedule`).
        proposal: how drafts are chosen: the most probable ones, or draws at this temperature.
        reuse_prefix: begin behind the tokens that the prompt shares with the text before, where the
            caches still hold them; False computes the whole prompt.
        logprobs: tell the log probability of each new token and of so many likeliest ones, as the
            target has them, whatever the temperature; None tells none.
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
    schedule: ScheduleKind = "auto"
    proposal: ProposalKind = "argmax"
    reuse_prefix: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong kind or out of range.

        Raises:
            OptionError: names every such option, its value and its range.
        """
        wrong = []
        for name, expected in RANGES.items():
            value = getattr(self, name)
            plain = _plain(name, value)
            if plain is None and not (value is None and name in MAY_BE_NONE):
                wrong.append(f"{name} is {value!r:.200}, expected {expected}")
            object.__setattr__(self, name, plain)
        if not wrong and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            wrong = [
                f"min_tokens is {self.min_tokens}, expected at most max_tokens, {self.max_tokens}"
            ]
        if wrong:
            raise OptionError("; ".join(wrong))

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


# What each option may be, in the words of the error.
RANGES = {
    "max_tokens": "a whole number of at least 1",
    "min_tokens": "a whole number of at least 0",
    "stop_ids": "a set of whole numbers of at least 0",
    "temperature": "a finite number of at least 0",
    "top_k": "a whole number of at least 0",
    "top_p": "a number above 0 and at most 1",
    "min_p": "a number of at least 0 and below 1",
    "repetition_penalty": f"a number between {1 / MOST_PENALTY} and {MOST_PENALTY:g}",
    "seed": "a whole number of at least 0",
    "confidence_threshold": "a number between 0 and 1",
    "schedule": f"one of {list(SCHEDULES)}",
    "proposal": f"one of {list(PROPOSALS)}",
    "reuse_prefix": "True or False",
    "logprobs": f"a whole number between 0 and {MOST_LOGPROBS}",
}
MAY_BE_NONE = ("max_tokens", "stop_ids", "seed", "logprobs")


def _plain(name: str, value: Any) -> Any:
    """Return an option's value as Python's own number, text or set; None where it is wrong."""
    if name in ("max_tokens", "min_tokens", "top_k", "seed", "logprobs"):
        number = whole_number(value)
        least = 1 if name == "max_tokens" else 0
        most = MOST_LOGPROBS if name == "logprobs" else math.inf
        return number if number is not None and least <= number <= most else None
    if name in ("schedule", "proposal"):
        choices: tuple[str, ...] = SCHEDULES if name == "schedule" else PROPOSALS
        return value if isinstance(value, str) and value in choices else None
    if name == "stop_ids":
        return _plain_ids(value)
    if name == "reuse_prefix":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    is_right = {
        "temperature": 0 <= real < math.inf,
        "top_p": 0 < real <= 1,
        "min_p": 0 <= real < 1,
        "repetition_penalty": 1 / MOST_PENALTY <= real <= MOST_PENALTY,
        "confidence_threshold": 0 <= real <= 1,
    }
    return real if is_right[name] else None


def _plain_ids(value: Any) -> frozenset[int] | None:
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        return None
    ids = [whole_number(entry) for entry in value]
    kept = frozenset(entry for entry in ids if entry is not None and entry >= 0)
    return kept if all(entry is not None and entry >= 0 for entry in ids) else None


def whole_number(value: Any) -> int | None:
    """Return a whole number of Python or NumPy as an int; None for anything else, a bool too."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole else None
