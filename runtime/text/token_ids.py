"""What a caller may give as a prompt, told apart and checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftrt.errors import FeedError
from draftrt.runtime.decoding.options import whole_number

KINDS = "a text, a list of messages with role and content, or token ids"
MOST_SHOWN = 5


def is_messages(prompt: Any) -> bool:
    """Return whether a prompt is a list of chat messages.

    Raises:
        FeedError: it is a list of messages and other things, or a message is malformed.
    """
    if isinstance(prompt, Mapping):
        raise FeedError(
            f"the prompt is a {type(prompt).__name__}, expected {KINDS}",
            hint="put a single message in a list",
        )
    if not isinstance(prompt, list | tuple):
        return False
    found = [isinstance(entry, Mapping) for entry in prompt]
    if not any(found):
        return False
    if not all(found):
        raise FeedError(f"the prompt mixes messages with {_other(prompt)}, expected {KINDS}")
    check_messages(prompt)
    return True


def check_text(text: str) -> None:
    """Check that a text is valid Unicode.

    Raises:
        FeedError: it has a lone surrogate, as bytes become that were read as UTF-8 and are not.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FeedError(
            f"the prompt is no valid text: {text[error.start]!r} at character {error.start}, "
            "expected what can be written as UTF-8",
            hint="decode the bytes it came from with their own encoding",
        ) from error


def check_messages(messages: Any) -> None:
    """Check chat messages, all problems in one error.

    Raises:
        FeedError: no list, or entries without a text as ``role`` and a text, or a list of parts, as
            ``content``; the content may be left out where there are ``tool_calls``.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise FeedError(f"messages are {_named(messages)}, expected a list of them")
    if not messages:
        raise FeedError("there are no messages, expected at least 1")
    wrong = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            wrong.append(f"message {number} is {_named(message)}, expected role and content")
            continue
        for key in ("role", "content"):
            value = message.get(key)
            if isinstance(value, str) or (key == "content" and _may_be_content(value, message)):
                continue
            found = f"is {_named(value)}" if key in message else "is missing"
            wrong.append(f"message {number}: {key} {found}, expected a text")
    if wrong:
        raise FeedError(
            "; ".join(_shortened(wrong)), hint='a message is {"role": "user", "content": "..."}'
        )


def _may_be_content(value: Any, message: Mapping[Any, Any]) -> bool:
    """Whether this may stand for a text: parts, as some templates take, or nothing beside calls."""
    if value is None:
        return bool(message.get("tool_calls"))
    return isinstance(value, list | tuple) and all(isinstance(part, Mapping) for part in value)


def checked_ids(prompt: Any, num_ids: int | None) -> tuple[int, ...]:
    """Return token ids as Python's own whole numbers.

    Args:
        prompt: a sequence or one-dimensional array of whole numbers, Python's or NumPy's.
        num_ids: rows of the target's embedding table; None where they are not known.

    Raises:
        FeedError: something else, or ids that are negative or beyond the table.
    """
    is_binary = isinstance(prompt, str | bytes | bytearray | memoryview)
    shape = getattr(prompt, "shape", None)
    if is_binary or shape == () or (shape is None and not isinstance(prompt, Sequence)):
        hint = "decode it first: prompt.decode()" if isinstance(prompt, bytes | bytearray) else ""
        raise FeedError(f"the prompt is {_named(prompt)}, expected {KINDS}", hint=hint)
    if shape is not None and len(shape) != 1:
        raise FeedError(
            f"the prompt has the shape {list(shape)}, expected one dimension",
            hint="give one prompt a call",
        )
    entries = prompt.tolist() if isinstance(prompt, np.ndarray) else list(prompt)
    ids = [_index(entry) for entry in entries]
    wrong = [
        f"{_named(entry)} at position {place}"
        for place, (entry, number) in enumerate(zip(entries, ids, strict=True))
        if number is None or number < 0 or (num_ids is not None and number >= num_ids)
    ]
    if wrong:
        most = "" if num_ids is None else f" and below {num_ids}, the rows of the target's table"
        raise FeedError(
            f"token ids: got {', '.join(_shortened(wrong))}, expected whole numbers of at least 0"
            + most
        )
    return tuple(number for number in ids if number is not None)


def _index(entry: Any) -> int | None:
    """Return an entry as an int; that of another library through its ``item()``."""
    number = whole_number(entry)
    if number is None and getattr(entry, "shape", None) == ():
        number = whole_number(entry.item())
    return number


def _shortened(found: list[str]) -> list[str]:
    more = len(found) - MOST_SHOWN
    return [*found[:MOST_SHOWN], f"{more} more"] if more > 0 else found


def _other(prompt: Sequence[Any]) -> str:
    return _named(next(entry for entry in prompt if not isinstance(entry, Mapping)))


def _named(value: Any) -> str:
    """Return a value as an error shows it: small ones themselves, others by their type."""
    if value is None or isinstance(value, bool | int | float | np.generic):
        return f"{value!r:.60}"
    return f"a {type(value).__name__}" + (f" ({value!r:.60})" if isinstance(value, str) else "")
