"""Prompts: from files, from standard input, and as chats.

Prompts, and the form in which a target gets them: through its chat template, or as they are.

Those that do not fit are found before the first one is decoded, all at once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftrt.codec import check_file, parse
from draftrt.errors import BundleError, DraftrtError, FeedError
from draftrt.runtime.text.chat import ChatTemplate, Message, checked_messages, checked_variables
from draftrt.runtime.text.token_ids import check_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from draftrt.runtime.decoding.loop import DecodeLoop


Encode = Callable[[str | Sequence[Message], Mapping[str, Any] | None], tuple[int, ...]]
PLAIN, CHAT = "as it is", "chat template"
CONTROL = re.compile(
    r"<\|?[a-z_]+\|?>|\[/?[A-Z_]+\]", re.ASCII
)  # what templates write around turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a target is asked.

    Attributes:
        messages: a conversation; a text alone is the one message of a user.
        text: the text; None where messages were given.
        variables: template variables of this prompt.
    """

    messages: tuple[Message, ...]
    text: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The text, or that of the last message."""
        if self.text is not None:
            return self.text
        content = self.messages[-1].get("content")
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def asked(text: str, **variables: Any) -> Request:
    """Return a text as a request."""
    return Request(messages=({"role": "user", "content": text},), text=text, variables=variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How prompts are written out for a target.

    Attributes:
        is_chat: True: through the chat template; False: as they are; None: through the template
            where the tokenizer has one.
        system: a message of the system in front.
        variables: template variables of every prompt; a prompt's own win.
    """

    is_chat: bool | None = None
    system: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def settled(self, template: ChatTemplate, requests: Sequence[Request]) -> Form:
        """Return the form with ``is_chat`` decided.

        Raises:
            BundleError: the tokenizer has no template, and something needs one.
            FeedError: messages to be taken as they are.
        """
        given = [number for number, one in enumerate(requests, start=1) if one.text is None]
        if template.templates and self.is_chat is not False:
            return replace(self, is_chat=True)
        needs = {
            "--chat": self.is_chat,
            "a system message": self.system is not None,
            "template variables": self.variables or any(one.variables for one in requests),
            "messages": given,
        }
        asking = [name for name, is_asked in needs.items() if is_asked]
        if asking and self.is_chat is False:
            raise FeedError(
                f"got {' and '.join(asking)}, and prompts that are taken as they are",
                hint="leave --raw out: these need the chat template",
            )
        if asking:
            raise BundleError(
                f"{template.folder}: the target has no chat template, and {' and '.join(asking)} "
                f"need{'s' if len(asking) == 1 and asking[0].startswith(('-', 'a ')) else ''} one",
                hint="give the prompt as one text, with everything that belongs to it",
            )
        return replace(self, is_chat=False)

    def describe(self) -> str:
        """Return the form in words: ``chat template, enable_thinking=false``."""
        if not self.is_chat:
            return PLAIN
        system = [] if self.system is None else ["with a system message"]
        told = (f"{name}={json.dumps(value)}"[:80] for name, value in self.variables.items())
        return ", ".join([CHAT, *system, *told])

    def encode(self, encode: Encode, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the ids of each prompt in this form, which is settled.

        Args:
            encode: ids of a text or of messages, as `draftrt.runtime.pair.Pair.encode`.
            requests: the prompts.

        Raises:
            BundleError: the template refuses messages.
            FeedError: a prompt with two messages of the system, or as `encode_prompt`.
        """
        return [encode(*self.written(number, one)) for number, one in enumerate(requests, 1)]

    def written(
        self, number: int, one: Request
    ) -> tuple[str | Sequence[Message], Mapping[str, Any]]:
        """Return a prompt as its text or its messages, and its template variables.

        Args:
            number: of the prompt, from 1, for an error.
            one: the prompt.

        Raises:
            FeedError: two messages of the system.
        """
        if not self.is_chat and one.text is not None:
            return one.text, {}
        messages = one.messages
        if self.system is not None:
            if messages[0].get("role") == "system":
                raise FeedError(
                    f"prompt {number}: got a message of the system in it and --system, expected one"
                )
            messages = ({"role": "system", "content": self.system}, *messages)
        return messages, {**self.variables, **one.variables}

    def notes(self, template: ChatTemplate, requests: Sequence[Request]) -> list[str]:
        """Return what a user should know: the form in use, and what looks like a mistake.

        Args:
            template: the target's.
            requests: the prompts.
        """
        told = [f"prompts: {self.describe()}"]
        if not self.is_chat:
            return told
        own = (name for one in requests for name in one.variables)
        names = dict.fromkeys([*self.variables, *own])
        unused = template.unused(names)
        told += [f"warning: the chat template does not use the variable {name}" for name in unused]
        controls = set(CONTROL.findall("".join(template.templates.values())))
        texts = [one.text for one in requests if one.text is not None]
        held = sorted({found for text in texts for found in CONTROL.findall(text)} & controls)
        if held:
            told.append(
                f"warning: a prompt holds {', '.join(held[:4])}, which the chat template writes "
                "itself; --raw takes prompts as they are"
            )
        return told


def encode_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    prompt: str | Sequence[Message],
    variables: Mapping[str, Any] | None,
    *,
    num_ids: int | None = None,
) -> tuple[int, ...]:
    """Return the ids of a text as it is, or of messages through the chat template.

    Args:
        tokenizer: the target's.
        template: its chat template.
        prompt: the text or the messages.
        variables: of the template.
        num_ids: rows of the target's embedding table; None where they are not known.

    Raises:
        BundleError: the target has no chat template, or it refuses the messages; or the tokenizer
            cannot encode the text, or gives ids that the target has not.
        FeedError: neither a text nor messages, a text that is no valid Unicode, variables that are
            no JSON data, or variables for a text.
    """
    is_text = isinstance(prompt, str)
    if isinstance(prompt, str):
        no_variables(variables)
        text = prompt
    else:
        text = template.render(prompt, variables or {})
    check_text(text)
    try:
        ids = tokenizer.encode(text, add_special_tokens=is_text).ids
    except Exception as error:  # what tokenizers raises is Exception itself
        raise BundleError(
            f"{template.folder}: the tokenizer cannot encode the prompt: {error}",
            hint="export the bundle again from the target's own folder",
        ) from error
    wrong = [token for token in ids if num_ids is not None and token >= num_ids]
    if wrong:
        raise BundleError(
            f"{template.folder}: the tokenizer gives id {wrong[0]} "
            f"({tokenizer.id_to_token(wrong[0])!r}), expected ids below {num_ids}, "
            "the rows of the target's table",
            hint="leave that token out of the prompt: the target knows nothing of it",
        )
    return tuple(ids)


def no_variables(variables: Mapping[str, Any] | None) -> None:
    """Refuse template variables for what goes through no template.

    Raises:
        FeedError: there are some.
    """
    if variables:
        raise FeedError(
            f"got template variables {', '.join(map(str, variables))} for a prompt that goes "
            "through no chat template",
            hint='give messages: [{"role": "user", "content": ...}]',
        )


def room_problem(
    decoder: DecodeLoop,
    requests: Sequence[Request],
    ids: Sequence[Sequence[int]],
    max_tokens: int,
    form: str = "",
) -> FeedError | None:
    """Return which prompts do not fit a decoder with ``max_tokens`` behind each; None: all fit.

    Args:
        decoder: it has run nothing yet.
        requests: the prompts.
        ids: the tokens of each.
        max_tokens: new tokens wanted.
        form: their form, in words.
    """
    why = f"{max_tokens} are wanted behind each, and {decoder.held}"
    return length_problem(requests, ids, decoder.most_tokens - max_tokens, why, form=form)


def length_problem(
    requests: Sequence[Request],
    ids: Sequence[Sequence[int]],
    most: int,
    why: str,
    *,
    form: str = "",
) -> FeedError | None:
    """Return what is wrong with the lengths of prompts, all of them in one error; None: nothing.

    Args:
        requests: the prompts.
        ids: the tokens of each.
        most: tokens that each may have.
        why: what limits them, in words.
        form: their form, in words.
    """
    wrong = [
        f"\n  prompt {number}, {one.label[:40]!r}: {len(tokens)} tokens"
        for number, (one, tokens) in enumerate(zip(requests, ids, strict=True), start=1)
        if not 0 < len(tokens) <= most
    ]
    if not wrong:
        return None
    return FeedError(
        f"{len(wrong)} of {len(requests)} prompts{f' ({form})' if form else ''} do not fit, "
        f"expected {f'1 to {most} tokens each' if most > 0 else 'larger caches'}: {why}"
        + "".join(wrong),
        hint="shorten them, ask for fewer tokens or rounds, or export with a larger --max-context",
    )


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
# What a shell's `<(...)` names: open here already, so nothing waits for a writer.
OPENED = (Path("/dev/fd"), Path("/proc/self/fd"))
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
            place = Path(path).absolute()
            if not (place.exists() or place.is_symlink()):
                raise FeedError(f"{name}: no such file", hint=HINT)
            if place.parent not in OPENED and place != Path("/dev/stdin"):
                check_file(Path(path), FeedError, hint=HINT)
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise FeedError(f"{name}: got more than {MOST_BYTES >> 20} MiB, expected prompts")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise FeedError(f"{name}: cannot be read: {error.strerror}", hint=HINT) from error
    except ValueError as error:
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
