"""Chat templates: messages to the prompt text a target was trained on, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from draftrt.errors import BundleError

Message = Mapping[str, str]


def load_template(folder: Path) -> str:
    """Return the chat template of a bundle's tokenizer folder.

    ``chat_template.jinja`` wins over ``chat_template`` in ``tokenizer_config.json``; of several
    named templates there, ``default`` is taken.

    Raises:
        BundleError: there is no template.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = _tokenizer_config(folder).get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise BundleError(
            f"{folder}: the target has no chat template",
            hint="give the prompt as it is, without --chat",
        )
    return template


def render(folder: Path, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
    """Render messages with a bundle's chat template, up to where the assistant begins.

    Args:
        folder: the bundle's tokenizer folder.
        messages: each with ``role`` and ``content``.
        variables: further template variables, as ``enable_thinking``.

    Raises:
        BundleError: there is no template, or it refuses the messages.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        text: str = environment.from_string(load_template(folder)).render(
            messages=list(messages),
            add_generation_prompt=True,
            **_special_tokens(folder),
            **variables,
        )
    except (TemplateError, TemplateRefusalError, TypeError) as error:
        raise BundleError(
            f"{folder}: the chat template cannot render these messages: {error}",
            hint="check roles and variables, or give the prompt without --chat",
        ) from error
    return text


class TemplateRefusalError(ValueError):
    """Raised by a template through ``raise_exception``."""


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusalError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Dump without the HTML escapes of jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _special_tokens(folder: Path) -> dict[str, str]:
    config = _tokenizer_config(folder)
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise BundleError(f"{path}: got a {type(config).__name__}, expected an object")
    return config
