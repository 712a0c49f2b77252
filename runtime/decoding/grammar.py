"""Output that obeys a grammar: which tokens may come next, along a path of drafts.

The llguidance package compiles grammars and follows them token by token. Verification asks for each
row which tokens may stand there, given the drafts kept before it; so the target's choice, and the
distribution that it is drawn from, are those of decoding one token after the other under the same
mask. Where only one text can go on, its tokens are drafts that cost no drafter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import require
from draftrt.codec import read_bytes
from draftrt.errors import FeedError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

GrammarKind = Literal["json_schema", "regex", "lark"]
KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)
MOST_TEXT = 1 << 20  # bytes of a grammar
MOST_COMPILED = 16  # grammars that are kept for the next call
# As Python's json.dumps writes, which is what chat templates show a target. A schema's own
# "x-guidance" wins. Free white space would let a target write it for ever.
WRITTEN: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must obey.

    Attributes:
        kind: ``json_schema``, ``regex`` (of the Rust crate, for the whole output) or ``lark`` (as
            llguidance reads it).
        text: the schema as JSON, the expression, or the grammar.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        """Refuse what is no grammar at all; whether it compiles is known with the tokenizer.

        Raises:
            OptionError: a kind that there is not, no text, or one that is too long.
        """
        if self.kind not in KINDS:
            raise OptionError(f"grammar of kind {self.kind!r:.80}, expected one of {list(KINDS)}")
        text: object = self.text
        if not isinstance(text, str) or not text:
            raise OptionError(f"grammar is {text!r:.80}, expected a text")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise OptionError(f"grammar: holds what is no UTF-8: {error.reason}") from error
        if size > MOST_TEXT or "\0" in self.text:
            raise OptionError(
                f"grammar of {size} bytes, expected at most {MOST_TEXT}, and no byte 0"
            )

    @classmethod
    def json_schema(cls, schema: Any) -> Grammar:
        """Return the grammar of a JSON schema: JSON data, or its text.

        Raises:
            OptionError: it is no JSON object, nor true.
        """
        try:
            found = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(found, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"JSON schema: expected JSON data: {error!s:.200}") from error
        if not isinstance(found, dict) and found is not True:
            raise OptionError(f"JSON schema is {text:.80}, expected an object")
        return cls("json_schema", text)

    @classmethod
    def regex(cls, expression: str) -> Grammar:
        """Return the grammar of a regular expression."""
        return cls("regex", expression)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Return a Lark grammar, as llguidance reads it."""
        return cls("lark", text)


def read_text(path: Path) -> str:
    """Return the text of a file with a grammar.

    Raises:
        FeedError: it cannot be read, is too long, or no UTF-8.
    """
    try:
        return read_bytes(path, FeedError, most=MOST_TEXT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FeedError(f"{path}: byte {error.start} is not UTF-8") from error


class GrammarTokenizer:
    """A tokenizer as grammars need it; made once for a pair.

    Attributes:
        stop_ids: the target's own end-of-text ids.
    """

    def __init__(self, path: Path, stop_ids: frozenset[int]) -> None:
        """Read a tokenizer.

        Args:
            path: ``tokenizer.json``.
            stop_ids: the target's own end-of-text ids.

        Raises:
            BackendError: llguidance is not installed.
            UnsupportedError: it cannot read the tokenizer.
        """
        require("llguidance", what="a grammar")
        import llguidance

        self.stop_ids = stop_ids
        self._compiled: dict[Grammar, LLMatcher] = {}  # the latest ones, untouched
        try:
            self._tokenizer: LLTokenizer = llguidance.LLTokenizer(
                path.read_text(encoding="utf-8"), eos_token=sorted(stop_ids) or None
            )
        except Exception as error:  # what the package raises is ValueError, or Exception itself
            raise UnsupportedError(
                f"{path}: llguidance cannot read the tokenizer: {error!s:.300}",
                hint="decode without a grammar",
            ) from error

    def matcher(self, grammar: Grammar, stop_ids: Iterable[int]) -> GrammarMatcher:
        """Return a matcher that stands at the beginning of the output.

        Args:
            grammar: what the output must obey.
            stop_ids: ids that end the text.

        Raises:
            OptionError: the grammar does not compile; in the words of llguidance.
        """
        if not isinstance(grammar, Grammar):
            raise OptionError(f"grammar is {grammar!r:.80}, expected draftrt.Grammar")
        if grammar not in self._compiled:
            while len(self._compiled) >= MOST_COMPILED:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[grammar] = self._compile(grammar)
        own = (*self.stop_ids, *self._tokenizer.eos_tokens)
        matcher = self._compiled[grammar].deep_copy()
        return GrammarMatcher(matcher, frozenset(own), frozenset(stop_ids))

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        if grammar.kind == "json_schema":
            compiled = LLMatcher.grammar_from_json_schema(grammar.text, defaults=WRITTEN)
        elif grammar.kind == "regex":
            compiled = LLMatcher.grammar_from_regex(grammar.text)
        else:
            compiled = LLMatcher.grammar_from_lark(grammar.text)
        matcher = LLMatcher(self._tokenizer, compiled, log_level=0)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        if matcher.is_stopped():
            raise _refused(grammar, "allows no text but the empty one")
        return matcher


def _refused(grammar: Grammar, why: str) -> OptionError:
    return OptionError(
        f"grammar ({grammar.kind}): {why.strip():.500}",
        hint="docs/python.md says which grammars there are, and links to what they may hold",
    )


class GrammarMatcher:
    """Where an output stands in its grammar: what is committed, and a path of drafts behind it.

    Attributes:
        is_over: whether the committed output is complete and nothing may follow it.
    """

    def __init__(
        self, matcher: LLMatcher, eos_ids: frozenset[int], stop_ids: frozenset[int]
    ) -> None:
        self.is_over = False
        self._matcher, self._eos_ids, self._stop_ids = matcher, eos_ids, stop_ids
        self._num_followed = 0  # drafts behind what is committed

    def forced(self, most: int) -> list[int]:
        """Return the tokens of the text that must come next, at most so many; often none."""
        tokens: list[int] = self._matcher.compute_ff_tokens()[:most]
        return tokens

    def path(self, draft_ids: Sequence[int], most: int) -> tuple[list[int], int]:
        """Return the drafts to judge: given ones, and in their place those that are forced.

        Given drafts stay behind forced ones only where they foresaw them: they were drawn as what
        follows just those tokens. The first that breaks the grammar ends the path, and is judged
        too: its refusal tells of the target's choice. Nothing is judged behind the output's end.

        Args:
            draft_ids: what a drafter offers.
            most: drafts that may be verified.

        Returns:
            The drafts, and how many of them obey the grammar: all, or all but the last.
        """
        left, found = list(draft_ids), list[int]()
        num_judged = 0
        while len(found) < most and not self._matcher.is_stopped():
            if path := self.forced(most - len(found)):
                left = left[len(path) :] if left[: len(path)] == path else []
            elif left and self.allows(left[0]):
                path = [left.pop(0)]
            else:
                num_judged = len(left[:1])
                break
            found += path
            if path[0] in self._stop_ids:
                break
            for token in path:
                self.follow(token)
        self.rollback()
        return found + left[:num_judged], len(found)

    def follow(self, token: int) -> None:
        """Go one draft further, which obeys the grammar."""
        if token not in self._stop_ids:
            self._consume(token)
            self._num_followed += 1

    def allows(self, token: int) -> bool:
        """Return whether a token may come next."""
        if token in self._stop_ids:
            return bool(self._matcher.is_accepting())
        if token in self._eos_ids:
            return False
        if forced := self.forced(1):
            return token == forced[0]
        return bool(self._matcher.validate_tokens([token]))

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Return which tokens may come next.

        Args:
            size: V, tokens that the target has logits of.

        Returns:
            [V] bool, true at least once.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(size, np.bool_)
        found = np.unpackbits(bits, bitorder="little")[:size]
        allowed[: len(found)] = found
        is_complete = self._matcher.is_accepting()
        for token in self._eos_ids | self._stop_ids:
            if token < size:
                allowed[token] = is_complete and token in self._stop_ids
        self._check()
        if not allowed.any():  # the output is complete: what comes here is no part of it
            allowed[:] = True
        return allowed

    def rollback(self) -> None:
        """Go back to what is committed."""
        if self._num_followed:
            self._matcher.rollback(self._num_followed)
            self._num_followed = 0

    def commit(self, token_ids: Sequence[int]) -> int:
        """Go on behind committed tokens, and return how many of them belong to the output.

        Fewer than all where the output is complete before the last.
        """
        for index, token in enumerate(token_ids):
            if token in self._stop_ids:
                return index + 1
            self._consume(token)
            if self._matcher.is_stopped():
                self.is_over = True
                return index + 1
        return len(token_ids)

    def _consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UnsupportedError(
                f"grammar: {self._matcher.get_error().strip():.300}",
                hint="make it simpler: llguidance gives up beyond limits of its own",
            )
