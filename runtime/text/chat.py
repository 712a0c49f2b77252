"""Chat templates: messages to the prompt text a target was trained on.

The templates are found and named as transformers does. A process of its own renders them
(`draftrt.runtime.text.chat_renderer`), so that no template can hang or fill the caller's.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from draftrt.codec import read_bytes, read_object
from draftrt.errors import BackendError, BundleError, FeedError
from draftrt.lifecycle import Closing
from draftrt.runtime.text.token_ids import check_messages

Message = Mapping[str, Any]
DEFAULT, TOOL_USE = "default", "tool_use"
FOLDER = "additional_chat_templates"
SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
OWN = ("messages", "add_generation_prompt")  # variables that the rendering sets itself
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one and the same, in messages
LONGEST_TEMPLATE = 1 << 20  # bytes; published ones have up to 20 thousand
MOST_SECONDS = 10.0  # of processor time for a text
MOST_WAIT_S = 40.0  # of wall time, on a machine too busy to give it the other
PROGRAM = (
    "import json, sys; sys.path += json.loads(sys.argv[1]); "
    "from draftrt.runtime.text.chat_renderer import serve; serve()"
)


class ChatTemplate(Closing):
    """The chat templates of a tokenizer's folder; a context manager.

    The process that renders starts with the first text and is kept for the next ones.

    Attributes:
        folder: the folder.
        most_seconds: processor time that a text may take.
    """

    def __init__(self, folder: Path, *, most_seconds: float = MOST_SECONDS) -> None:
        self.folder = folder
        self.most_seconds = most_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    @cached_property
    def templates(self) -> dict[str, str]:
        """Name to template; empty where the tokenizer has none."""
        return load_templates(self.folder)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """Render messages up to where the assistant begins.

        Args:
            messages: each with ``role``, most with ``content``.
            variables: further template variables, as ``enable_thinking`` or ``tools``.

        Raises:
            BundleError: there is no template, or it refuses the messages.
            FeedError: messages or variables that are no JSON data.
        """
        template = self._choose(variables)
        wanted = {
            "tools": None,
            "documents": None,
            **special_tokens(self.folder),
            **checked_variables(variables),
            "messages": checked_messages(messages),
            "add_generation_prompt": True,
        }
        line = _as_json({"template": template, "context": wanted, "seconds": self.most_seconds})
        with self._lock:
            answer = self._ask(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer["text"]

    def unused(self, variables: Mapping[str, Any]) -> list[str]:
        """Return the variables that the template never names."""
        template = self._choose(variables)
        return [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", template)]

    def close(self) -> None:
        """End the process that renders."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    def _choose(self, variables: Mapping[str, Any]) -> str:
        if not self.templates:
            raise BundleError(
                f"{self.folder}: the target has no chat template",
                hint="give the prompt as it is, with --raw, or in Python as a str",
            )
        wants_tools = variables.get("tools") is not None and TOOL_USE in self.templates
        name = TOOL_USE if wants_tools else DEFAULT
        if name not in self.templates:
            raise BundleError(
                f"{self.folder}: got chat templates named {', '.join(sorted(self.templates))}, "
                f"expected one named {DEFAULT}",
                hint="save the one to use as chat_template.jinja beside the target's tokenizer",
            )
        return self.templates[name]

    def _ask(self, line: str) -> dict[str, str]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(MOST_WAIT_S, stop)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # the process is gone
            answer = ""
        except BaseException:  # an answer that is still to come would be the next one's
            self.close()
            raise
        finally:
            timer.cancel()
        if answer.endswith("\n"):
            found: dict[str, str] = json.loads(answer)
            return found
        self.close()
        return {"error": self._end_of(process.returncode, is_late=is_late.is_set())}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, json.dumps(sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,  # Ctrl-C on the terminal is the caller's
                )
            except OSError as error:
                raise BackendError(
                    f"{sys.executable}: cannot be started to render a chat template: {error}",
                    hint="give the prompt as it is, with --raw, or in Python as a str",
                ) from error
            self._end = weakref.finalize(self, _stop, self._process)
        return self._process

    def _end_of(self, status: int, *, is_late: bool) -> str:
        """Return in words why the process that renders ended without an answer."""
        if is_late:
            return f"it takes more than {MOST_WAIT_S:.0f} s"
        if status == -getattr(signal, "SIGPROF", 0):
            return f"it takes more than {self.most_seconds:g} s of processor time"
        return f"the process that renders it ended with status {status}"

    def _failure(self, why: str) -> BundleError:
        return BundleError(
            f"{self.folder}: the chat template cannot render these messages: {why[:500]}",
            hint="check roles and variables, or give the prompt as it is, with --raw",
        )


def load_templates(folder: Path) -> dict[str, str]:
    """Return a tokenizer's chat templates by name; a single one is ``default``.

    Files (``chat_template.jinja`` and those in ``additional_chat_templates``) win over
    ``chat_template`` in ``tokenizer_config.json``, which holds one or a list of named ones.

    Raises:
        BundleError: a file cannot be read, or is no template.
    """
    found = {path.stem: _text(path) for path in sorted((folder / FOLDER).glob("*.jinja"))}
    path = folder / "chat_template.jinja"
    if path.is_file():
        found[DEFAULT] = _text(path)
    return found or _inline(folder)


def _inline(folder: Path) -> dict[str, str]:
    value = _json(folder / "tokenizer_config.json").get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    named: Any = value
    if isinstance(value, list):
        entries = [one for one in value if isinstance(one, dict)]
        named = {one.get("name"): one.get("template") for one in entries}
    if isinstance(named, dict) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in named.items()
    ):
        return dict(named)
    raise BundleError(
        f"{folder / 'tokenizer_config.json'}: chat_template: got a {type(value).__name__} of "
        "something else, expected a text, or a list of objects with name and template"
    )


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that a template may name, as ``bos_token``."""
    config = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    named = {f"{name}_token": config.get(f"{name}_token") for name in SPECIAL_TOKENS}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(config.get(key), dict):
            named |= config[key]
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return template variables, or refuse them.

    Raises:
        FeedError: a name that the rendering sets itself, or that is none, or no JSON data.
    """
    for name, value in variables.items():
        if not str(name).isidentifier() or name in OWN:
            raise FeedError(
                f"template variable {name!r}: expected a name of letters, digits and _, other than "
                f"{' and '.join(OWN)}"
            )
        _as_json(value, f"template variable {name}: ")
    return dict(variables)


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages as templates see them, or refuse them: entries of None left out.

    Raises:
        FeedError: as `check_messages`, or one that is no JSON data.
    """
    check_messages(messages)
    found = []
    for number, message in enumerate(messages, start=1):
        kept = {key: value for key, value in message.items() if value is not None}
        _as_json(kept, f"message {number}: ")
        said = next((kept[name] for name in REASONING if name in kept), None)
        found.append(kept if said is None else {"thinking": said, **kept, REASONING[0]: said})
    return found


def _as_json(value: Any, place: str = "") -> str:
    """Return JSON of text that is text: no NaN, no half of a surrogate pair.

    Raises:
        FeedError: it is none.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return json.dumps(value)
    except UnicodeEncodeError as error:
        raise FeedError(f"{place}holds bytes that are no UTF-8: {error.reason}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FeedError(f"{place}expected JSON data: {error}") from error


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except OSError:  # what was not written yet has no reader
            continue
    process.wait()


def _text(path: Path) -> str:
    content = read_bytes(path, BundleError, most=LONGEST_TEMPLATE)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: byte {error.start} is not UTF-8") from error


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, BundleError) if path.is_file() else {}
