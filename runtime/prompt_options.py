"""Options that say how prompts are written out, the same for every command that decodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from draftrt.codec import parse
from draftrt.errors import DraftrtError
from draftrt.runtime.prompts import Form
from draftrt.runtime.text.chat import checked_variables

F = TypeVar("F", bound=Callable[..., Any])
FILE_HELP = "File with a prompt a line, or JSON lines (docs/prompts.md); - reads standard input."
PYTHON = {"True": "true", "False": "false", "None": "null"}


class TextType(click.types.StringParamType):
    """A text of at least one character that is UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or fail as wrong usage."""
        text = str(value)
        if not text:
            self.fail("got an empty text, expected at least one character", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            part = text[max(error.start - 20, 0) : error.end + 20]
            self.fail(
                f"got bytes that are no UTF-8 at character {error.start + 1}: "
                f"{part.encode(errors='surrogateescape')!r}",
                param,
                ctx,
            )
        return text


TEXT = TextType()


def form_options(function: F) -> F:
    """Add ``--chat``, ``--raw``, ``--system`` and ``--template-var``; pass them on as ``form``."""

    @click.option(
        "--chat",
        "is_chat",
        is_flag=True,
        help="Demand the target's chat template.  [default: where the tokenizer has one]",
    )
    @click.option("--raw", "is_raw", is_flag=True, help="Take prompts as they are, no template.")
    @click.option("--system", type=TEXT, help="Message of the system in front of each prompt.")
    @click.option(
        "--template-var",
        "variables",
        metavar="NAME=JSON",
        type=TEXT,
        multiple=True,
        help="Variable of the chat template, as enable_thinking=false; may be repeated.",
    )
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        is_chat: bool,
        is_raw: bool,
        system: str | None,
        variables: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        if is_raw and (is_chat or system or variables):
            raise click.UsageError(
                "--raw excludes --chat, --system and --template-var: these need the chat template"
            )
        form = Form(
            is_chat=True if is_chat else False if is_raw else None,
            system=system,
            variables=parse_variables(variables),
        )
        return function(*args, form=form, **kwargs)

    return wrapped  # type: ignore[return-value]


def parse_variables(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return template variables: values are JSON, or texts where they are none.

    Raises:
        click.UsageError: no name, a name twice, or a value that was meant to be JSON.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise click.UsageError(f"--template-var {text}: expected NAME=VALUE")
        if name in found:
            raise click.UsageError(f"--template-var {name}: given twice")
        found[name] = _value(name, value)
        try:
            checked_variables({name: found[name]})
        except DraftrtError as error:
            raise click.UsageError(f"--template-var: {error.message}") from error
    return found


def _value(name: str, text: str) -> Any:
    if text in PYTHON:
        raise click.UsageError(
            f"--template-var {name}={text}: expected JSON: {name}={PYTHON[text]}, or "
            f"{name}='\"{text}\"' for the word"
        )
    try:
        return parse(text.encode())
    except ValueError as error:
        if text.startswith(("[", "{", '"')):
            raise click.UsageError(f"--template-var {name}: no JSON: {error}") from error
        return text
