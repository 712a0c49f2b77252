"""Fields of OpenAI's schema: taken, taken where they change nothing, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic")
from pydantic import ValidationError

from draftrt.errors import DraftrtError, FeedError
from draftrt.runtime.server.prompts import decode_options, template_messages
from draftrt.runtime.server.schema import NEUTRAL, ChatRequest, CompletionRequest

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def refused(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(HELLO | fields)
    return str(caught.value)


@pytest.mark.parametrize("field", NEUTRAL)
def test_values_that_change_nothing_are_taken_and_others_refused(field: str) -> None:
    for value in (*NEUTRAL[field], None):
        ChatRequest.model_validate(HELLO | {field: value})
    assert field in refused(**{field: "else"})
    assert field in refused(**{field: 7})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"unheard_of": 1}, "unheard_of"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "give one of them"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream_options": {}}, "stream_options goes with stream"),
        ({"stream": True, "stream_options": {"other": 1}}, "other"),
        ({"messages": []}, "messages"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [TOOL, TOOL]}, "one name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "'b'"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "cannot obey both"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], told: str) -> None:
    assert told in refused(**fields)


def test_a_completion_takes_one_prompt() -> None:
    for prompt in ("a", ["a"], [1, 2]):
        CompletionRequest.model_validate({"prompt": prompt})
    for wrong in ("", [], ["a", "b"], [[1]], [1.5], 3):
        with pytest.raises(ValidationError):
            CompletionRequest.model_validate({"prompt": wrong})


def test_options_are_the_requests() -> None:
    wanted = ChatRequest.model_validate(
        HELLO | {"temperature": 0.5, "top_p": 0.9, "seed": 3, "max_completion_tokens": 9}
    )
    options = decode_options(wanted, 10)
    assert (options.temperature, options.top_p, options.seed, options.max_tokens) == (
        0.5,
        0.9,
        3,
        9,
    )
    assert decode_options(ChatRequest.model_validate(HELLO), 10).is_greedy
    with pytest.raises(DraftrtError, match="at most 8"):
        decode_options(wanted, 8)


def test_messages_become_what_templates_take() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    found = template_messages(
        [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "be"}, {"type": "text", "text": " short"}],
            },
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ]
    )
    assert found[0] == {"role": "system", "content": "be short"}
    assert found[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert found[2]["content"] == ""
    assert found[3]["tool_call_id"] == "c"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user"}, r"messages\[0\].content is missing"),
        ({"role": "king", "content": "a"}, "king"),
        ({"content": "a"}, "role is None"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "image_url"),
        ({"role": "user", "content": 3}, "int"),
        ({"role": "user", "content": "a", "weight": 1}, "weight is not supported"),
        ({"role": "assistant", "tool_calls": [3]}, "function.name"),
        ({"role": "assistant", "tool_calls": 3}, "function.name"),
    ],
)
def test_messages_that_cannot_be_taken_are_refused(message: dict[str, Any], told: str) -> None:
    with pytest.raises(FeedError, match=told):
        template_messages([message])
