"""The forms a prompt can take: as it is, or through the chat template, with thinking or without.

Another form gives another text, so forms cannot be replayed; they are decoded, and compared prompt
by prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftrt.errors import BundleError
from draftrt.runtime.chat import load_template
from draftrt.runtime.options import DecodeOptions
from draftrt.runtime.pair import Pair
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


def encode_all(pair: Pair, prompts: Sequence[str], is_chat: bool) -> list[tuple[int, ...]]:
    """Return the ids of prompts, as they are or through the chat template.

    Raises:
        BundleError: the target has no chat template.
    """
    return [_encode(pair, prompt, CHAT if is_chat else PLAIN) for prompt in prompts]


def compare_forms(
    pair: Pair,
    prompts: Sequence[str],
    own: Sequence[Sequence[int]],
    *,
    is_chat: bool,
    max_tokens: int,
    false_alarms: float,
) -> list[FormResult]:
    """Decode the prompts in every other form and compare acceptance with the form in use.

    Args:
        pair: the loaded bundle.
        prompts: texts.
        own: acceptance length of each round in the form in use, prompt by prompt.
        is_chat: whether that form is the chat template.
        max_tokens: new tokens of each prompt.
        false_alarms: probability of naming a form wrongly.
    """
    used = CHAT if is_chat else PLAIN
    others = [form for form in forms_of(pair) if form != used]
    found = []
    for form in others:
        lengths = [_lengths(pair, prompt, form, max_tokens) for prompt in prompts]
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


def _lengths(pair: Pair, prompt: str, form: str, max_tokens: int) -> list[int]:
    """Return the acceptance length of every drafted round of a prompt."""
    rounds = pair.rounds(_encode(pair, prompt, form), DecodeOptions(max_tokens=max_tokens))
    return [one.num_accepted + 1 for one in rounds if one.draft_ids]
