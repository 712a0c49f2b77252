"""Text to ids and back, streamed without ever splitting a code point.

Works on the tokenizer files of a bundle with the `tokenizers` package; knows no chat format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from draftrt.errors import BundleError, OptionError

INCOMPLETE = "\ufffd"  # what decoders put for bytes that are no code point (yet)
LONGEST_CODE_POINT = 4  # bytes, so at most as many tokens
LONGEST_MATCH = 16  # characters that a pattern across tokens is taken to match at most
FEWEST_TOKENS, MOST_TOKENS = 6, 12  # of the window that is decoded again


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
    """Turns a stream of ids behind a prompt into text that only ever grows.

    All pieces joined are what the tokenizer makes of prompt and new ids together, less what it
    makes of the prompt: decoded alone, a continuation may lose its first space or half a code
    point. Only the last few tokens are decoded again, so the cost of a token does not grow. Given
    out is what no later token can change: not a code point that is still incomplete, not a run of
    single bytes that a later one could spoil, not what a rule of the tokenizer could still replace.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._kinds = _Kinds.of(tokenizer)
        prompt = [token for token in prompt_ids if token not in self._kinds.silent]
        self._window = self._tail(prompt, 1)  # tokens that give context, then the latest ones
        self._prompt = self._text(self._window)  # of the window, while nothing was given out
        self._num_given = 0  # characters of the window's text that were given out

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids and return the text that is final now; may be empty."""
        self._window += [token for token in token_ids if token not in self._kinds.silent]
        text = self._text(self._window)
        piece = self._give(text, self._final_length(text))
        self._shorten(text)
        return piece

    def flush(self) -> str:
        """Return what is left, incomplete code points as U+FFFD."""
        text = self._text(self._window)
        return self._give(text, len(text))

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _final_length(self, text: str) -> int:
        """Return how many characters of the window's text no later token can change."""
        run = self._run_of_bytes(len(self._window))
        if run < len(self._window):  # of a run that is no text as a whole every byte is U+FFFD
            final = _common_length(text, self._text(self._window[:run]))
        else:
            tail = text[-LONGEST_CODE_POINT + 1 :]
            final = len(text) - len(tail) + len(tail.rstrip(INCOMPLETE))
        return min(final, len(text) - self._kinds.replaced)

    def _run_of_bytes(self, end: int) -> int:
        """Return where the run of single bytes in front of ``end`` begins."""
        while end and self._window[end - 1] in self._kinds.single_bytes:
            end -= 1
        return end

    def _give(self, text: str, end: int) -> str:
        given = self._num_given
        if self._prompt:
            given = _common_length(self._prompt, text)
        if end <= given:
            return ""
        self._num_given, self._prompt = end, ""
        return text[given:end]

    def _shorten(self, text: str) -> None:
        """Forget tokens at the window's start that nothing depends on any more."""
        if self._prompt or len(self._window) <= MOST_TOKENS:
            return
        held = len(text) - self._num_given
        kept = self._tail(self._window, held + 1)
        if len(kept) < len(self._window):
            self._window, self._num_given = kept, len(self._text(kept)) - held

    def _tail(self, token_ids: list[int], num_chars: int) -> list[int]:
        """Return the last ids that give context: some text, not from amid a run of single bytes."""
        for count in range(FEWEST_TOKENS, len(token_ids), FEWEST_TOKENS):
            kept = token_ids[-count:]
            is_amid = kept[0] in self._kinds.single_bytes
            if not is_amid and len(self._text(kept)) >= num_chars + self._kinds.replaced:
                return kept
        return list(token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """What a tokenizer does to the text of neighbouring tokens.

    Attributes:
        silent: special tokens, which give no text.
        single_bytes: tokens like ``<0x0A>`` where they are joined to code points.
        replaced: characters at the end that a rule across tokens may still replace.
    """

    silent: frozenset[int]
    single_bytes: frozenset[int]
    replaced: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> _Kinds:
        """Read them off a tokenizer."""
        added = tokenizer.get_added_tokens_decoder()
        rules = _rules(tokenizer)
        is_joined, replaced = False, 0
        for rule in rules:
            is_joined |= rule["type"] in ("Fuse", "ByteLevel")
            if is_joined and rule["type"] == "Replace":
                pattern = rule["pattern"].get("String")
                replaced += LONGEST_MATCH if pattern is None else len(pattern) - 1
        single_bytes: set[int | None] = set()
        if any(rule["type"] == "ByteFallback" for rule in rules):
            single_bytes = {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
        return cls(
            silent=frozenset(token for token, what in added.items() if what.special),
            single_bytes=frozenset(token for token in single_bytes if token is not None),
            replaced=replaced,
        )


def _common_length(one: str, other: str) -> int:
    """Return how many characters two texts have in common from their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _rules(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's decoder, in order."""
    if tokenizer.decoder is None:
        return []
    found = [json.loads(tokenizer.decoder.__getstate__())]
    while any(rule["type"] == "Sequence" for rule in found):
        found = [part for rule in found for part in rule.get("decoders", [rule])]
    return found


class StopStrings:
    """Watches a growing text for the first stop string and holds back what may become one.

    Attributes:
        found: the stop string that was met; None so far.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        given: Any = stops
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise OptionError(
                f"stop is {given!r:.200}, expected a list of texts",
                hint="put a single stop string in a list: stop=[...]",
            )
        wrong = [stop for stop in given if not isinstance(stop, str) or not stop]
        if wrong:
            raise OptionError(f"stop has {wrong!r:.200}, expected texts of at least one character")
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
