"""Answers in OpenAI's schema, whole and in pieces, with what speculation gained."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftrt.runtime.decoding.stats import Stats, TokenLogprobs
from draftrt.runtime.pair import Chunk
from draftrt.runtime.server.calls import Call, Form, Kind, Splitter, parse_calls


@dataclass(slots=True)
class Answer:
    """One answer while it comes.

    Attributes:
        model: name of the bundle.
        prompt_tokens: of the prompt.
        is_chat: a message, or a text that goes on.
        name: the text of a token.
        form: of calls; None where there are no functions.
    """

    model: str
    prompt_tokens: int
    is_chat: bool
    name: Callable[[int], str]
    form: Form | None = None
    is_thinking: bool = False
    finish: str | None = None
    stats: Stats = field(default_factory=Stats)
    calls: list[Call] = field(default_factory=list)
    texts: dict[Kind, str] = field(default_factory=dict)
    told: list[TokenLogprobs] = field(default_factory=list)
    _splitter: Splitter = field(init=False)
    _id: str = field(init=False)
    _created: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self._splitter = Splitter(self.form, is_thinking=self.is_thinking)
        self._id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def begin(self) -> dict[str, Any]:
        """Return the first piece of a stream of a chat."""
        return self._piece({"role": "assistant", "content": ""})

    def take(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Take a round; return what it adds to a stream."""
        self.stats.add(chunk.round)
        if chunk.finish:
            self.finish = chunk.finish
        new = chunk.round.logprobs
        self.told += new or ()
        if not self.is_chat:
            self.texts["content"] = self.texts.get("content", "") + chunk.text
            yield self._piece({"text": chunk.text}, told=_told(chunk), logprobs=new)
            return
        parts = self._splitter.push(chunk.text)
        if chunk.finish:
            parts += self._splitter.flush()
        told: dict[str, Any] | None = _told(chunk)
        for kind, text in parts:
            if delta := self._delta(kind, text):
                yield self._piece(delta, told=told, logprobs=new)
                told = new = None
        if told is not None:
            yield self._piece({}, told=told, logprobs=new)

    def _delta(self, kind: Kind, text: str) -> dict[str, Any]:
        if kind == "call" and self.form is not None:
            found = parse_calls(text, self.form)
            if found:
                first = len(self.calls)
                self.calls += found
                return {
                    "tool_calls": [
                        {"index": first + at, **self._call(first + at)} for at in range(len(found))
                    ]
                }
            kind = "content"  # no call after all: nothing that was said is lost
        if kind == "content" and self.calls and not text.strip():
            return {}
        self.texts[kind] = self.texts.get(kind, "") + text
        return {"reasoning_content" if kind == "reasoning" else "content": text}

    def _call(self, number: int) -> dict[str, Any]:
        one = self.calls[number]
        function = {"name": one.name, "arguments": one.arguments}
        return {"id": f"call_{self._id[-12:]}_{number}", "type": "function", "function": function}

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        return "tool_calls" if self.calls and self.finish != "length" else self.finish or "length"

    def end(self) -> dict[str, Any]:
        """Return the last piece of a stream, with the figures."""
        made = self._piece({} if self.is_chat else {"text": ""}, finish=self.finish_reason)
        return made | {"draftrt": self.figures()}

    def usage_piece(self) -> dict[str, Any]:
        """Return the piece that tells the usage alone."""
        return {**self._head(is_piece=True), "choices": [], "usage": self.usage()}

    def whole(self) -> dict[str, Any]:
        """Return the whole answer."""
        content = self.texts.get("content", "")
        made: dict[str, Any] = {"index": 0, "finish_reason": self.finish_reason}
        made["logprobs"] = self._logprobs(self.told or None)
        if self.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": content}
            if "reasoning" in self.texts:
                message["reasoning_content"] = self.texts["reasoning"]
            if self.calls:
                message["content"] = content or None
                message["tool_calls"] = [self._call(at) for at in range(len(self.calls))]
            made["message"] = message
        else:
            made["text"] = content
        return {
            **self._head(),
            "choices": [made],
            "usage": self.usage(),
            "draftrt": self.figures(),
        }

    def usage(self) -> dict[str, Any]:
        """Return the counts of tokens."""
        new = self.stats.num_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": new,
            "total_tokens": self.prompt_tokens + new,
            "prompt_tokens_details": {"cached_tokens": self.stats.reused_tokens},
        }

    def figures(self) -> dict[str, Any]:
        """Return what speculation gained."""
        stats = self.stats
        return {
            "acceptance_length": round(stats.acceptance_length, 3),
            "tokens_per_s": round(stats.tokens_per_s, 2),
            "first_token_ms": round(1e3 * stats.prefill_s, 2),
            "reused_tokens": stats.reused_tokens,
            "rounds": stats.num_rounds,
            "lookups": stats.lookups,
            "plain_rounds": stats.plain_rounds,
        }

    def _head(self, *, is_piece: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if is_piece else "chat.completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self.model}

    def _piece(
        self,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        told: Any = None,
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice["logprobs"] = self._logprobs(logprobs)
        choice |= {"delta": delta} if self.is_chat else delta
        made = {**self._head(is_piece=True), "choices": [choice]}
        return made if told is None else made | {"draftrt": told}

    def _logprobs(self, told: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        """Return log probabilities as the schema has them."""
        if told is None:
            return None
        if self.is_chat:
            content = [
                self._entry(one.token_id, one.logprob)
                | {"top_logprobs": [self._entry(*best) for best in one.top]}
                for one in told
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [self.name(one.token_id) for one in told],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": [{self.name(token): lp for token, lp in one.top} for one in told],
            "text_offset": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.name(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _told(chunk: Chunk) -> dict[str, Any]:
    """Return a round: its pieces of text, and how many of them were drafted and kept."""
    kept = min(chunk.round.num_accepted, len(chunk.token_ids))
    return {"pieces": list(chunk.pieces), "kept": kept, "source": chunk.round.source}
