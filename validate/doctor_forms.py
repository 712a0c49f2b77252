"""The forms a prompt can take: as it is, or through the chat template, with thinking or without.

Another form gives another text, so forms cannot be replayed; they are decoded, and compared prompt
by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftrt.errors import BundleError, collect
from draftrt.runtime.chat import load_template
from draftrt.runtime.options import DecodeOptions
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import room_problem
from draftrt.validate.doctor_statistics import Estimate, estimate

MIN_GAIN = 0.2  # tokens a round: texts differ too, so a small gain says little
PLAIN, CHAT, SILENT = "as it is", "chat template", "chat template, thinking off"
SWITCH = "enable_thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormResult:
    """What prompts in another form gave.

    Attributes:
        form: which one.
        length: acceptance length.
        gain: difference to the form in use, prompt by prompt.
        is_better: whether the gain is real and large.
    """

    form: str
    length: Estimate
    gain: Estimate
    is_better: bool


def encode_forms(
    pair: Pair, prompts: Sequence[str], max_tokens: int, *, is_chat: bool, with_others: bool
) -> dict[str, list[tuple[int, ...]]]:
    """Return the ids of prompts in the form in use and, if wanted, in the others behind it.

    Args:
        pair: the loaded bundle.
        prompts: texts.
        max_tokens: new tokens wanted behind each.
        is_chat: whether the form in use is the chat template.
        with_others: whether the other forms are wanted.

    Raises:
        BundleError: the target has no chat template, or it refuses a prompt.
        FeedError: prompts do not fit; names all of them, form by form.
    """
    used = CHAT if is_chat else PLAIN
    others = [form for form in forms_of(pair) if form != used] if with_others else []
    encoded = {form: [_encode(pair, one, form) for one in prompts] for form in (used, *others)}
    problems = (
        room_problem(pair.decoder, prompts, ids, max_tokens, form) for form, ids in encoded.items()
    )
    collect([problem for problem in problems if problem is not None])
    return encoded


def compare_forms(
    pair: Pair,
    others: Mapping[str, Sequence[Sequence[int]]],
    own: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    false_alarms: float,
) -> list[FormResult]:
    """Decode the prompts in every other form and compare acceptance with the form in use.

    Args:
        pair: the loaded bundle.
        others: form to the ids of the prompts.
        own: acceptance length of each round in the form in use, prompt by prompt.
        max_tokens: new tokens of each prompt.
        false_alarms: probability of naming a form wrongly.
    """
    found = []
    for form, prompts in others.items():
        lengths = [_lengths(pair, prompt, max_tokens) for prompt in prompts]
        both = [(a, b) for a, b in zip(own, lengths, strict=True) if a and b]
        gain = estimate([[sum(b) / len(b) - sum(a) / len(a)] for a, b in both])
        level = false_alarms / len(others)
        is_better = gain.mean >= MIN_GAIN and gain.is_above(0.0, false_alarms=level)
        found.append(
            FormResult(form=form, length=estimate(lengths), gain=gain, is_better=is_better)
        )
    return found


def forms_of(pair: Pair) -> list[str]:
    """Return the forms a target knows; without a chat template only one."""
    try:
        template = load_template(pair.tokenizer_dir)
    except BundleError:  # a target without a template has no other form
        return [PLAIN]
    return [PLAIN, CHAT, *([SILENT] if SWITCH in template else [])]


def _encode(pair: Pair, prompt: str, form: str) -> tuple[int, ...]:
    if form == PLAIN:
        return pair.encode(prompt)
    variables: dict[str, Any] = {SWITCH: False} if form == SILENT else {}
    return pair.encode([{"role": "user", "content": prompt}], variables)


def _lengths(pair: Pair, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Return the acceptance length of every drafted round of a prompt."""
    rounds = pair.rounds(prompt, DecodeOptions(max_tokens=max_tokens))
    return [one.num_accepted + 1 for one in rounds if one.draft_ids]
