"""Text of others, as it may be shown on a terminal."""

from __future__ import annotations

import re

# What moves a cursor, changes colours or sends answers; line breaks and tabs stay.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as ``\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
