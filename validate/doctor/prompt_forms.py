"""The forms a prompt can take: as it is, or through the chat template, with thinking or without.

Another form gives another text, so forms cannot be replayed; they are decoded, and compared prompt
by prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from draftrt.errors import collect
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import Form, Request, room_problem
from draftrt.runtime.text.chat import ChatTemplate
from draftrt.validate.doctor.statistics import Estimate, estimate

MIN_GAIN = 0.2  # tokens a round: texts differ too, so a small gain says little
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
    pair: Pair, prompts: Sequence[Request], max_tokens: int, *, form: Form, with_others: bool
) -> dict[str, list[tuple[int, ...]]]:
    """Return the ids of prompts in the form in use and, if wanted, in the others behind it.

    Args:
        pair: the loaded bundle.
        prompts: what the target is asked.
        max_tokens: new tokens wanted behind each.
        form: the form in use, settled.
        with_others: whether the other forms are wanted.

    Raises:
        BundleError: the target has no chat template, or it refuses a prompt.
        FeedError: prompts do not fit; names all of them, form by form.
    """
    others = other_forms(pair.template, form, prompts) if with_others else []
    encoded = {one.describe(): one.encode(pair.encode, prompts) for one in (form, *others)}
    problems = (
        room_problem(pair.decoder, prompts, ids, max_tokens, name) for name, ids in encoded.items()
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


def other_forms(template: ChatTemplate, form: Form, prompts: Sequence[Request]) -> list[Form]:
    """Return the forms that these prompts could have too; without a chat template there is none."""
    if not template.templates:
        return []
    is_text = form.system is None and all(one.text is not None for one in prompts)
    found = [Form(is_chat=False)] if form.is_chat and is_text else []
    if not form.is_chat:
        found.append(replace(form, is_chat=True))
    has_switch = any(SWITCH in text for text in template.templates.values())
    is_chosen = SWITCH in form.variables or any(SWITCH in one.variables for one in prompts)
    if has_switch and not is_chosen:
        silent = {**form.variables, SWITCH: False}
        found.append(replace(form, is_chat=True, variables=silent))
    return found


def _lengths(pair: Pair, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Return the acceptance length of every drafted round of a prompt."""
    rounds = pair.rounds(
        prompt, DecodeOptions(max_tokens=max_tokens, schedule="all", reuse_prefix=False)
    )
    return [one.num_accepted + 1 for one in rounds if one.draft_ids]
