"""From a checked request to a job: messages as templates take them, options, the grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.errors import FeedError, OptionError
from draftrt.runtime.decoding.grammar import Grammar
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.server.calls import Form, call_grammar
from draftrt.runtime.server.schema import ChatRequest, CompletionRequest, Decoding, ToolChoice

ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
ROLES |= {"tool": "tool"}
KNOWN = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
EMPTY = ("refusal", "audio", "function_call", "annotations")  # clients send them back as they came


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as chat templates take them.

    Raises:
        FeedError: names the message and what of it is not known.
    """
    return [_message(number, one) for number, one in enumerate(messages)]


def _message(number: int, given: Mapping[str, Any]) -> dict[str, Any]:
    where = f"messages[{number}]"
    unknown = [
        key for key, value in given.items() if key not in KNOWN and (key not in EMPTY or value)
    ]
    if unknown:
        raise FeedError(f"{where}: {', '.join(map(str, unknown))[:200]} is not supported")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise FeedError(f"{where}.role is {role!r:.80}, expected one of {sorted(ROLES)}")
    made = {key: given[key] for key in KNOWN if given.get(key) is not None}
    made |= {"role": ROLES[role], "content": _text(f"{where}.content", given.get("content"))}
    if "tool_calls" in made:
        made["tool_calls"] = _calls(f"{where}.tool_calls", made["tool_calls"])
    elif given.get("content") is None:
        raise FeedError(f"{where}.content is missing")
    return made


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise FeedError(f"{where}: a part of type {kind!r:.80}, expected text")
    return "".join(part["text"] for part in parts)


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Return calls with their arguments as data, which templates write as JSON themselves."""
    made = []
    for one in calls if isinstance(calls, list) else [None]:
        call: dict[str, Any] = one if isinstance(one, dict) else {}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise FeedError(f"{where}: expected calls with function.name and function.arguments")
        arguments = function.get("arguments", "{}")
        try:
            data = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            data = arguments
        made.append({**call, "function": {**function, "arguments": data}})
    return made


def template_variables(request: ChatRequest) -> dict[str, Any] | None:
    """Return the variables of the chat template: tools, and what the caller gives."""
    found = dict(request.chat_template_kwargs or {})
    if request.tools and request.tool_choice != "none":
        found["tools"] = [tool.model_dump(exclude_none=True) for tool in request.tools]
    return found or None


def grammar_of(request: ChatRequest, form: Form) -> Grammar | None:
    """Return what the answer must obey: a format that was asked for, or a call that must come."""
    wanted = request.response_format
    if wanted is not None and wanted.type == "json_object":
        return Grammar.json_schema({"type": "object"})
    if wanted is not None and wanted.json_schema is not None:
        return Grammar.json_schema(wanted.json_schema.schema_)
    if request.tool_choice in (None, "none", "auto"):
        return None
    functions = {one.function.name: one.function.parameters or {} for one in request.tools or ()}
    if isinstance(request.tool_choice, ToolChoice):
        name = request.tool_choice.function.name
        functions = {name: functions[name]}
    return Grammar.lark(call_grammar(form, functions))


def decode_options(request: Decoding, most_tokens: int) -> DecodeOptions:
    """Return the options of a request.

    Raises:
        OptionError: more tokens than the server gives.
    """
    wanted = request.max_completion_tokens or request.max_tokens
    if wanted is not None and wanted > most_tokens:
        raise OptionError(
            f"max_tokens is {wanted}, expected at most {most_tokens}, the server's --max-tokens"
        )
    return DecodeOptions(
        max_tokens=wanted,
        temperature=request.temperature or 0.0,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=request.top_k or 0,
        min_p=request.min_p or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        seed=request.seed,
        logprobs=_logprobs(request),
    )


def _logprobs(request: Decoding) -> int | None:
    if isinstance(request, ChatRequest):
        return request.top_logprobs if request.logprobs else None
    return request.logprobs if isinstance(request, CompletionRequest) else None
