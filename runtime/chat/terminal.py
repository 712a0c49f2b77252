"""Lines from a terminal or a script, and text with colours where the terminal has them.

Python's own `readline` edits the lines: it is there wherever this runs, takes history and Ctrl-R,
and adds no package to a device; several lines take a backslash or three quotes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

DIM, KEPT, RESET = "\x1b[2m", "\x1b[32m", "\x1b[0m"
PROMPT, MORE, BLOCK = "> ", ". ", '"""'


def has_colours(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that takes colours, and nobody asked for none."""
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def coloured(text: str, colour: str, stream: TextIO | None) -> str:
    """Return a text in a colour where the stream takes it."""
    return f"{colour}{text}{RESET}" if text and has_colours(stream) else text


class Lines:
    """What a user says, a message at a time.

    Attributes:
        is_terminal: whether somebody types; else it is a script.
    """

    def __init__(self) -> None:
        """Take standard input."""
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401 - input() edits lines by it

    def message(self) -> str | None:
        """Return the next message, without its marks of several lines; None at the end.

        A line that ends in a backslash goes on in the next one; three quotes begin a block, and
        end it.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed is dropped.
        """
        line = self._line(PROMPT)
        if line is None:
            return None
        if line.lstrip().startswith(BLOCK):
            return self._block(line.lstrip().removeprefix(BLOCK))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            more = self._line(MORE)
            if more is None:
                break
            lines.append(more)
        return "\n".join(lines).strip()

    def _block(self, first: str) -> str:
        lines, line = [], first
        while not line.rstrip().endswith(BLOCK):
            lines.append(line)
            more = self._line(MORE)
            if more is None:
                return "\n".join(lines).strip("\n")
            line = more
        lines.append(line.rstrip().removesuffix(BLOCK))
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if self.is_terminal:
            try:
                return input(prompt)
            except EOFError:
                sys.stdout.write("\n")
                return None
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.rstrip("\r\n") if line else None
