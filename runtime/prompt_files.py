"""Prompts from files and from standard input: a prompt a line, JSON lines, or one whole text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftrt.errors import DraftrtError, FeedError
from draftrt.json_file import parse
from draftrt.runtime.chat import checked_messages, checked_variables
from draftrt.runtime.prompts import Request, asked

DEFAULT = (
    "Here is how to bake a loaf of bread, step by step:",
    "The three most important inventions of the nineteenth century were",
    "def fibonacci(n):",
    "Q: Why is the sky blue?\nA:",
    "Dear Anna, thank you for your letter. Last week",
    "1, 2, 4, 8, 16,",
    "Once upon a time, in a village by the sea,",
    "SELECT name, count(*) FROM orders",
)
STDIN = "-"
JSON_LINES = (".jsonl", ".ndjson")
MOST_BYTES = 1 << 26
VARIABLES = ("template_variables", "chat_template_kwargs")  # the second as servers name them
KEYS = ("messages", "prompt", "system", "tools", "documents", *VARIABLES, "id")
HINT = "give a UTF-8 text with a prompt a line, or JSON lines (docs/prompts.md)"


def read_prompts(path: Path | str | None, most: int | None = None) -> list[Request]:
    """Return the first prompts of a file; of none: built-in ones that suit every model.

    A file of JSON lines is named ``.jsonl`` or begins with an object that has ``messages`` or
    ``prompt``. In any other file each line that is not blank is a prompt.

    Args:
        path: the file; ``-``: standard input; None: the built-in ones.
        most: how many; None: all.

    Raises:
        FeedError: it cannot be read, holds no prompt, or lines that are none; names all of them.
    """
    if path is None:
        return [asked(text) for text in DEFAULT[:most]]
    lines = [line.removesuffix("\r") for line in _read(path).split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise FeedError(f"{_name(path)}: holds no prompts, expected one a line", hint=HINT)
    _refuse_whole_json(_name(path), lines)
    if _is_json(path, numbered[0][1]):
        return _from_json(_name(path), numbered)[:most]
    return [asked(line) for _, line in numbered[:most]]


def read_texts(path: Path, most: int) -> list[str]:
    """Return the first prompts of a file, which are all texts; as `read_prompts`.

    Raises:
        FeedError: as there, or one is more than a text.
    """
    requests = read_prompts(path, most)
    wrong = [n for n, one in enumerate(requests, 1) if one.text is None or one.variables]
    if wrong:
        raise FeedError(
            f"{path}: got messages or template variables in prompts {wrong[:8]}, expected texts",
            hint="recordings take texts as they are, without a chat template",
        )
    return [one.text for one in requests if one.text is not None]


def read_whole(path: Path | str) -> list[Request]:
    """Return the prompt that a whole file is, its last line break left out; or its JSON lines.

    Args:
        path: the file; ``-``: standard input.

    Raises:
        FeedError: as `read_prompts`.
    """
    text = _read(path)
    if Path(path).suffix in JSON_LINES:
        return read_prompts(path)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise FeedError(f"{_name(path)}: holds no prompt, expected a text")
    return [asked(text)]


def _name(path: Path | str) -> str:
    return "standard input" if str(path) == STDIN else str(path)


def _read(path: Path | str) -> str:
    """Return a text without its byte order mark."""
    name = _name(path)
    try:
        if str(path) == STDIN:
            if sys.stdin is None:
                raise FeedError("standard input: is closed, expected a prompt")
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise FeedError(f"{name}: got more than {MOST_BYTES >> 20} MiB, expected prompts")
        return content.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FeedError(f"{name}: no such file", hint=HINT) from error
    except (OSError, ValueError) as error:
        raise FeedError(f"{name}: cannot be read as UTF-8 text: {error}", hint=HINT) from error


def _refuse_whole_json(name: str, lines: Sequence[str]) -> None:
    """Refuse a file that is one JSON array of prompts, or one prompt over several lines."""
    text = "\n".join(lines).strip()
    if text[:1] not in ("[", "{"):
        return
    try:
        found = parse(text.encode())
    except ValueError:
        return
    first = found[0] if isinstance(found, list) and found else found
    is_whole = isinstance(found, list) or "\n" in text
    if is_whole and isinstance(first, dict) and ("messages" in first or "prompt" in first):
        raise FeedError(
            f"{name}: is one JSON {'array' if isinstance(found, list) else 'object'}, expected an "
            "object a line",
            hint="write each prompt on a line of its own: jq -c '.[]' does it"
            if isinstance(found, list)
            else "write it on one line: jq -c . does it",
        )


def _is_json(path: Path | str, first: str) -> bool:
    if Path(path).suffix in JSON_LINES:
        return True
    try:
        found = parse(first.encode())
    except ValueError:
        return False
    return isinstance(found, dict) and ("messages" in found or "prompt" in found)


def _from_json(name: str, numbered: Sequence[tuple[int, str]]) -> list[Request]:
    found, wrong = [], []
    for number, line in numbered:
        try:
            found.append(_request(parse(line.encode())))
        except DraftrtError as error:
            wrong.append(f"\n  line {number}: {error.message}")
        except ValueError as error:
            wrong.append(f"\n  line {number}: no JSON: {error!s:.200}")
    if wrong:
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise FeedError(
            f"{name}: {len(wrong)} of {len(numbered)} lines are no prompts"
            + "".join(wrong[:10])
            + more,
            hint='a line is {"prompt": "..."} or {"messages": [{"role": "user", "content": ...}]}',
        )
    return found


def _request(line: Any) -> Request:
    """Return the prompt of a line: an object, or a list of messages."""
    entry = {"messages": line} if isinstance(line, list) else line
    if not isinstance(entry, dict):
        raise FeedError(f"got a {type(line).__name__}, expected an object")
    if unknown := sorted(set(entry) - set(KEYS)):
        raise FeedError(f"got {', '.join(map(repr, unknown))}, expected {', '.join(KEYS)}")
    if ("messages" in entry) == ("prompt" in entry):
        raise FeedError("expected either messages or prompt")
    text, system = entry.get("prompt"), entry.get("system")
    for key, value in (("prompt", text), ("system", system)):
        if key in entry and not (isinstance(value, str) and value):
            raise FeedError(f"{key}: got {value!r:.80}, expected a text")
    messages = entry["messages"] if text is None else [{"role": "user", "content": text}]
    if not isinstance(messages, list):
        raise FeedError(f"messages: got {messages!r:.80}, expected a list")
    checked = checked_messages(messages)
    if system is not None:
        if checked[0]["role"] == "system":
            raise FeedError("got a message of the system and system, expected one of them")
        checked.insert(0, {"role": "system", "content": system})
    is_text = text is not None and system is None
    return Request(
        messages=tuple(checked), text=text if is_text else None, variables=_variables(entry)
    )


def _variables(entry: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in VARIABLES:
        value = entry.get(key, {})
        if not isinstance(value, dict):
            raise FeedError(f"{key}: got {value!r:.80}, expected an object")
        found |= value
    for key in ("tools", "documents"):
        if entry.get(key) is not None:
            found[key] = entry[key]
    for key in ("tools", "documents"):
        value = found.get(key)
        if value is not None and not (
            isinstance(value, list) and all(isinstance(one, dict) for one in value)
        ):
            raise FeedError(f"{key}: got {value!r:.80}, expected a list of objects")
    return checked_variables(found)
