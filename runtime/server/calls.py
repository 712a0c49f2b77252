"""What a target writes apart from its answer: its thoughts, and calls of functions.

Three forms are known: JSON between ``<tool_call>`` and its end (Qwen, Hermes), JSON alone or
behind ``<|python_tag|>`` (Llama 3), and calls as Python writes them in a block ``tool_code``
(Gemma). Which one it is, the chat template tells.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftrt.runtime.decoding.grammar import WRITTEN

Form = Literal["hermes", "llama", "gemma"]
Kind = Literal["content", "reasoning", "call"]
MARKS: dict[Form, tuple[str, str]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama": ("<|python_tag|>", ""),
    "gemma": ("```tool_code", "```"),
}
THOUGHTS = ("<think>", "</think>")


def form_of(template: str) -> Form:
    """Return in which form a chat template lets its target call functions."""
    if "<tool_call>" in template:
        return "hermes"
    return "gemma" if "tool_code" in template else "llama"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the function's name, and its arguments as JSON text."""

    name: str
    arguments: str


def parse_calls(text: str, form: Form) -> list[Call]:
    """Return the calls of one piece between marks; none where it is not of the form."""
    if form == "gemma":
        return list(_python_calls(text))
    try:
        found = json.loads(text)
    except ValueError:
        return []
    calls = [_json_call(one) for one in (found if isinstance(found, list) else [found])]
    return [one for one in calls if one is not None] if None not in calls else []


def _json_call(found: Any) -> Call | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    given = found.get("arguments", found.get("parameters", {}))
    return Call(found["name"], given if isinstance(given, str) else json.dumps(given))


def _python_calls(text: str) -> Iterator[Call]:
    try:
        body = ast.parse(text.strip()).body
        for line in body:
            value = line.value if isinstance(line, ast.Expr) else None
            for call in value.elts if isinstance(value, ast.List) else [value]:
                if isinstance(call, ast.Call) and not call.args:
                    given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
                    yield Call(ast.unparse(call.func), json.dumps(given))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return


class Splitter:
    """Tells the parts of a text apart while it comes."""

    def __init__(self, form: Form | None, *, is_thinking: bool = False) -> None:
        """Begin.

        Args:
            form: of calls; None: there are no functions to call.
            is_thinking: whether the prompt has begun the thoughts already.
        """
        self._form = form
        self._kind: Kind = "reasoning" if is_thinking else "content"
        self._held = ""
        self._is_begun = False

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Return what is certain by now; a call comes whole."""
        self._held += text
        found: list[tuple[Kind, str]] = []
        while self._step(found):
            pass
        return found

    def flush(self) -> list[tuple[Kind, str]]:
        """Return the rest."""
        held, self._held = self._held, ""
        return [(self._kind, held)] if held else []

    def _step(self, found: list[tuple[Kind, str]]) -> bool:
        """Take one part off; False where more text is needed."""
        if self._form == "llama" and self._kind == "content" and not self._is_begun:
            start = self._held.lstrip()
            if start[:1] in ("{", "["):
                self._kind = "call"
        if self._kind == "call":
            end = MARKS[self._form][1] if self._form else ""
            at = self._held.find(end) if end else -1
            if at < 0:
                return False
            found.append(("call", self._held[:at]))
            self._held, self._kind = self._held[at + len(end) :], "content"
            return True
        marks = self._marks()
        places = [(self._held.find(mark), mark) for mark in marks]
        first = min(((at, mark) for at, mark in places if at >= 0), default=None)
        if first is None:
            sure = len(self._held) - _begun(self._held, marks)
            self._give(found, self._held[:sure])
            self._held = self._held[sure:]
            return False
        at, mark = first
        self._give(found, self._held[:at])
        self._held = self._held[at + len(mark) :]
        self._kind = {THOUGHTS[0]: "reasoning", THOUGHTS[1]: "content"}.get(mark, "call")  # type: ignore[assignment]
        return True

    def _marks(self) -> Sequence[str]:
        if self._kind == "reasoning":
            return (THOUGHTS[1],)
        calls = (MARKS[self._form][0],) if self._form else ()
        mark = THOUGHTS[0]
        can_think = not self._is_begun and mark.startswith(self._held.lstrip()[: len(mark)])
        return (*calls, mark) if can_think else calls

    def _give(self, found: list[tuple[Kind, str]], text: str) -> None:
        if self._kind == "content" and not self._is_begun:
            text = text.lstrip("\n") if not text.strip() else text
            self._is_begun = bool(text.strip())
        if text:
            found.append((self._kind, text))


def _begun(text: str, marks: Sequence[str]) -> int:
    """Return how many last characters may be the beginning of a mark."""
    most = max((len(mark) for mark in marks), default=1) - 1
    for length in range(min(most, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def call_grammar(form: Form, functions: dict[str, dict[str, Any]]) -> str:
    """Return the Lark grammar of one call of these functions.

    Args:
        form: of calls.
        functions: name to the JSON schema of its parameters.
    """
    key = "parameters" if form == "llama" else "arguments"
    choices = []
    for name, schema in functions.items():
        whole = {
            "type": "object",
            "properties": {"name": {"const": name}, key: schema or {"type": "object"}},
            "required": ["name", key],
            "additionalProperties": False,
            "x-guidance": WRITTEN,
        }
        choices.append(f"%json {json.dumps(whole)}")
    rules = "\n".join(f"call_{at}: {one}" for at, one in enumerate(choices))
    either = " | ".join(f"call_{at}" for at in range(len(choices)))
    if form == "hermes":
        return f'start: "<tool_call>\\n" ({either}) "\\n</tool_call>"\n{rules}\n'
    return f"start: {either}\n{rules}\n"


def is_thinking(prompt: str) -> bool:
    """Whether a prompt ends inside of thoughts that the template has begun."""
    return re.search(r"<think>\s*$", prompt) is not None
