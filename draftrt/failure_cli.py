"""How a command ends when something fails: one sentence on standard error, and an exit status.

What is expected is a `DraftrtError` and says so itself. Here are the sentences for what can happen
anywhere: no memory, a full disk, a package that is not installed, an interrupt, a defect.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import click

from draftrt.backends import absence_in
from draftrt.errors import DraftrtError, printable
from draftrt.files import NO_ROOM, ROOM

TRACEBACK = "DRAFTRT_TRACEBACK"
LESS_MEMORY = (
    "close other programs, or take less: a smaller --max-context, another --precision, or "
    "--quantize; `draftrt plan` shows what a pair takes"
)
# How PyTorch, ONNX Runtime, TensorRT and C++ say that there is no memory.
_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "unable to allocate",
    "bad allocation",
    "bad_alloc",
)


class Ending(click.Command):
    """A command that ends as this module says."""

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run the command line; see `end`."""
        run = partial(super().main, *args, standalone_mode=False, **options)
        return end(run) if standalone_mode else run()


def end(command: Callable[[], object]) -> NoReturn:
    """Run a command of click in its non-standalone mode, and leave the process.

    Exit status: 0 done, 1 expected failure, 2 usage, 3 checked and different; 130 after Ctrl-C.
    """
    status: object = 0
    try:
        status = command() or 0
    except click.ClickException as error:
        _say(error.show)
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = interrupted()
    except Exception as error:  # noqa: BLE001 - whatever it is, a user gets a sentence
        failure = as_failure(error)
        if failure is not error and os.environ.get(TRACEBACK):
            _say(traceback.print_exc)
        _say(lambda: click.echo(f"Error: {printable(str(failure))}", err=True))
        status = failure.exit_code
    sys.exit(status if isinstance(status, int) else 0)


def interrupted() -> int:
    """Say that Ctrl-C ended the command; return its exit status."""
    _say(lambda: click.echo("Interrupted", err=True))
    return 128 + signal.SIGINT


def as_failure(error: Exception) -> DraftrtError:
    """Return what a user is told about an exception; an expected one tells itself."""
    if isinstance(error, DraftrtError):
        return error
    if is_out_of_memory(error):
        return DraftrtError(f"not enough memory: {_first_line(error)}", hint=LESS_MEMORY)
    if isinstance(error, ImportError) and (absent := absence_in(error, what="this command")):
        return absent
    if isinstance(error, OSError | UnicodeEncodeError) and (lost := _lost_output(error)):
        return lost
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return DraftrtError(f"{_first_line(error)}: expected a file or folder")
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(n) for n in (error.filename, error.filename2) if n is not None]
        where = " -> ".join(names) or "a file"
        return DraftrtError(f"{where}: {error.strerror}", hint=_hint_of(error))
    return DraftrtError(
        f"a defect of draftrt: {type(error).__name__}: {_first_line(error)}",
        hint=f"please report it, with what {TRACEBACK}=1 shows before this line",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, of whatever package, says that there is no memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(said in text for said in _NO_MEMORY)


def _lost_output(error: OSError | UnicodeEncodeError) -> DraftrtError | None:
    """Return the failure of standard output, if it is that; what it still holds is given up."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if click.echo.__code__ not in frames:
        return None
    with suppress(OSError, ValueError):  # Python would try once more at its end, and complain
        empty = os.open(os.devnull, os.O_WRONLY)
        os.dup2(empty, sys.stdout.fileno())
        os.close(empty)
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.encoding} has no {error.object[error.start]!a}"
        hint = "set PYTHONIOENCODING=utf-8"
    else:
        what, hint = error.strerror or str(error), _hint_of(error)
    return DraftrtError(f"standard output: cannot be written: {what}", hint=hint)


def _hint_of(error: OSError) -> str:
    return ROOM if error.errno in NO_ROOM else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no more is known")[:500]


def _say(write: Callable[[], object]) -> None:
    """Write on standard error; where that is gone, the exit status says it alone."""
    with suppress(OSError):
        write()
