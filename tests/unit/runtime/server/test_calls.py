"""Thoughts and calls are told from an answer, wherever its text is cut."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from draftrt.runtime.server.calls import (
    Call,
    Form,
    Splitter,
    call_grammar,
    form_of,
    is_thinking,
    parse_calls,
)

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = Call("add", '{"a": 1}')


def parts(
    text: str, form: Form | None, cuts: list[int], *, thinking: bool = False
) -> list[tuple[str, str]]:
    """The parts of a text that comes in pieces, neighbours of a kind joined."""
    splitter = Splitter(form, is_thinking=thinking)
    found: list[tuple[str, str]] = []
    edges = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(edges):
        found += splitter.push(text[start:end])
    found += splitter.flush()
    joined: list[tuple[str, str]] = []
    for kind, piece in found:
        if joined and joined[-1][0] == kind != "call":
            joined[-1] = (kind, joined[-1][1] + piece)
        else:
            joined.append((kind, piece))
    return joined


CASES: list[tuple[str, Form | None, bool, list[tuple[str, str]]]] = [
    ("Hello there", None, False, [("content", "Hello there")]),
    ("a < b <th", None, False, [("content", "a < b <th")]),
    (
        "<think>so\nit is</think>\n\nYes.",
        None,
        False,
        [("reasoning", "so\nit is"), ("content", "Yes.")],
    ),
    ("so it is</think>\nYes.", None, True, [("reasoning", "so it is"), ("content", "Yes.")]),
    ("never ends", None, True, [("reasoning", "never ends")]),
    ("Say <think> aloud", None, False, [("content", "Say <think> aloud")]),
    (
        f"I add.\n{HERMES}\n{HERMES}",
        "hermes",
        False,
        [
            ("content", "I add.\n"),
            ("call", HERMES[11:-12]),
            ("content", "\n"),
            ("call", HERMES[11:-12]),
        ],
    ),
    (HERMES, None, False, [("content", HERMES)]),
    (
        "<think>call it</think>" + HERMES,
        "hermes",
        False,
        [("reasoning", "call it"), ("call", HERMES[11:-12])],
    ),
    ("<tool_call>{broken", "hermes", False, [("call", "{broken")]),
    (
        '{"name": "add", "parameters": {"a": 1}}',
        "llama",
        False,
        [("call", '{"name": "add", "parameters": {"a": 1}}')],
    ),
    ("The set {1, 2}", "llama", False, [("content", "The set {1, 2}")]),
    ("```tool_code\nadd(a=1)\n```", "gemma", False, [("call", "\nadd(a=1)\n")]),
]


@pytest.mark.parametrize(("text", "form", "thinking", "expected"), CASES)
def test_parts_are_told_apart_wherever_the_text_is_cut(
    text: str, form: Form | None, thinking: bool, expected: list[tuple[str, str]]
) -> None:
    rng = random.Random(7)
    every = list(range(1, len(text)))
    tries = [[], every, *(rng.sample(every, min(3, len(every))) for _ in range(30))]
    for cuts in tries:
        found = parts(text, form, cuts, thinking=thinking)
        if "</think>" in text or "\n<" in text:  # white space at an edge may fall away
            assert [(k, t.strip()) for k, t in found] == [(k, t.strip()) for k, t in expected], cuts
        else:
            assert found == expected, cuts


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', "hermes", [ADD]),
        ('{"name": "add", "parameters": {"a": 1}}', "llama", [ADD]),
        ('[{"name": "add", "arguments": {"a": 1}}]', "llama", [ADD]),
        ('{"name": "now"}', "hermes", [Call("now", "{}")]),
        ('{"name": 3}', "hermes", []),
        ('[{"name": "add"}, 3]', "hermes", []),
        ("[1", "hermes", []),
        ("add(a=1)", "gemma", [ADD]),
        ("[add(a=1), add(a=1)]", "gemma", [ADD, ADD]),
        ("add(a=print)", "gemma", []),
        ("add(1)", "gemma", []),
        ("(" * 500, "gemma", []),
    ],
)
def test_calls_are_read(text: str, form: Form, expected: list[Call]) -> None:
    assert parse_calls(text, form) == expected


def test_the_template_tells_the_form() -> None:
    assert form_of("... <tool_call> ...") == "hermes"
    assert form_of("```tool_code") == "gemma"
    assert form_of("plain") == "llama"
    assert is_thinking("<|assistant|><think>\n")
    assert not is_thinking("<think></think>\n")


@pytest.mark.parametrize("form", ["hermes", "llama"])
def test_a_call_that_is_asked_for_is_a_grammar_of_those_functions(form: Form) -> None:
    pytest.importorskip("llguidance")
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._tokenizer import TokenizerWrapper

    class Bytes:
        """A tokenizer whose tokens are the bytes."""

        eos_token_id, bos_token_id, unk_token_id = 256, None, None

        def __init__(self) -> None:
            self.tokens = [*(bytes([one]) for one in range(256)), b"<end>"]
            self.special_token_ids = [256]

        def __call__(self, text: bytes | str) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes()))
    key = "parameters" if form == "llama" else "arguments"
    inner = json.dumps({"name": "add", key: {"a": 1}})
    right = f"<tool_call>\n{inner}\n</tool_call>" if form == "hermes" else inner
    for text, is_right in ((right, True), (right.replace("add", "del"), False)):
        matcher = LLMatcher(tokenizer, call_grammar(form, {"add": schema}))
        assert not matcher.get_error()
        taken = sum(bool(matcher.consume_token(one)) for one in text.encode())
        assert (taken == len(text)) is is_right
