"""Text of others on a terminal."""

from __future__ import annotations

import pytest

from draftrt.errors import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \n\ttext é 日本 \U0001f600", "plain \n\ttext é 日本 \U0001f600"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\rb\x00\x7f\x9b2J", "a\\rb\\x00\\x7f\\x9b2J"),
        ("a\u202eb\u2028", "a\\u202eb\\u2028"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
