"""The process that renders chat templates: untrusted programs, within limits that the system keeps.

A template comes with a model and may loop for ever or ask for all memory. So it runs in a process
of its own (`draftrt.runtime.text.chat` starts it), which answers one line of JSON for each line it
gets and ends with its input. Nothing is imported here but the standard library and Jinja.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 1 << 30  # of address space, the interpreter's own included
MOST_TEXT = 1 << 26  # characters


def serve() -> None:
    """Answer requests until the input ends.

    A request is ``{"template": TEXT, "context": {NAME: VALUE}, "seconds": NUMBER}``; the answer
    ``{"text": TEXT}``, or ``{"error": TEXT}``.
    """
    _limit_memory()
    environment()  # importing Jinja counts for no text
    for line in sys.stdin:
        request = json.loads(line)
        _limit_seconds(request["seconds"])
        answer = json.dumps(_answer(request["template"], request["context"]))
        _limit_seconds(0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _answer(template: str, context: dict[str, Any]) -> dict[str, str]:
    try:
        text = environment().from_string(template).render(context)
    except MemoryError:
        return {"error": f"it takes more than {MOST_BYTES >> 30} GiB of memory"}
    except RecursionError:
        return {"error": "it calls itself without end, or is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - templates raise what they like
        return {"error": f"{error}" or type(error).__name__}
    if len(text) > MOST_TEXT:
        return {"error": f"it gives {len(text)} characters, expected at most {MOST_TEXT}"}
    return {"text": text}


def environment() -> Environment:
    """Return Jinja as transformers sets it up for chat templates: the same functions and tags."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what an assistant said, for training; here it is its body."""

        tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

        def parse(self, parser: Parser) -> nodes.Node:
            """Return the body, called as transformers does: names set inside stay inside."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(message: object = "") -> NoReturn:
        raise TemplateError(str(message))

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _limit_memory() -> None:
    """Let allocations beyond `MOST_BYTES` fail; not where the system has no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = MOST_BYTES if most == resource.RLIM_INFINITY else min(MOST_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (soft, most))


def _limit_seconds(seconds: float) -> None:
    """Let the system end this process after so much processor time more; 0: never."""
    if hasattr(signal, "ITIMER_PROF"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
