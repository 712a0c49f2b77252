"""Text to ids and back, streamed without ever splitting a code point.

Works on the tokenizer files of a bundle with the `tokenizers` package; knows no chat format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from draftrt.errors import BundleError

INCOMPLETE = "\ufffd"  # what decoders put for bytes that are no code point (yet)
LONGEST_CODE_POINT = 4  # bytes, so at most as many tokens


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load ``tokenizer.json`` of a bundle's tokenizer folder.

    Raises:
        BundleError: the file is missing or no tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise BundleError(
            f"{path}: no such file",
            hint="export the bundle again from a target that has a tokenizer.json",
        )
    content = path.read_bytes()
    try:
        tokenizer: Tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # what tokenizers raises is Exception itself, no class of its own
        raise BundleError(
            f"{path}: the tokenizers package cannot read it: {error}",
            hint="the file is damaged, or written for a newer release of tokenizers",
        ) from error
    return tokenizer


class TextStream:
    """Turns a stream of ids into text that only ever grows.

    A text is given out as soon as it ends in a whole code point. Decoding looks at a few earlier
    tokens, because some tokenizers join words by their neighbours.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens that give context, then the tokens not given out yet
        self._num_given = 0  # how many of them are context

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids and return the text that is complete now; may be empty."""
        self._window += token_ids
        return self._give(self._complete())

    def flush(self) -> str:
        """Return what is left, incomplete code points as U+FFFD."""
        return self._give(len(self._window))

    def _text(self, end: int) -> str:
        text: str = self._tokenizer.decode(self._window[:end], skip_special_tokens=True)
        return text

    def _complete(self) -> int:
        """Return how far the window can be given out without splitting a code point."""
        end = len(self._window)
        if not self._text(end).endswith(INCOMPLETE):
            return end
        # Only the last few tokens can be part of a code point that is still to be completed; in
        # front of them U+FFFD is final.
        oldest = max(self._num_given, end - LONGEST_CODE_POINT + 1)
        for cut in range(end - 1, oldest, -1):
            if not self._text(cut).endswith(INCOMPLETE):
                return cut
        return oldest

    def _give(self, end: int) -> str:
        if end == self._num_given:
            return ""
        before, text = self._text(self._num_given), self._text(end)
        self._window = self._window[self._num_given :]
        self._num_given = end - self._num_given
        return text[len(before) :]


class StopStrings:
    """Watches a growing text for the first stop string and holds back what may become one.

    Attributes:
        found: the stop string that was met; None so far.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty, expected at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what is certainly in front of any stop string."""
        self._held += text
        hits = [(self._held.index(stop), stop) for stop in self._stops if stop in self._held]
        if hits:
            position, self.found = min(hits)
            return self._release(position)
        return self._release(len(self._held) - self._longest_beginning())

    def flush(self) -> str:
        """Return what was held back, after the text has ended otherwise."""
        return self._release(len(self._held))

    def _longest_beginning(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for length in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text
