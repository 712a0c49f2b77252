"""What can go wrong, each with got, expected and hint.

The exceptions a user can meet.

DraftrtError                      printed without a traceback; carries ``hint``; exit code 1
├── SpecError                      a description contradicts itself, its checkpoint or its target
├── CheckpointError                tensors are missing, unexpected, of a wrong shape, or unreadable
├── UnsupportedError               understood, and deliberately not supported
├── ExportError                    the graph could not be produced or does not match its module
├── BuildError                     TensorRT refused the graph; holds the tail of its log
├── BundleError                    manifest and files disagree, or the folder cannot be written
├── BackendError                   a backend or package is missing, or cannot run on this machine
├── FeedError                      an array given to a graph does not fit its signature
├── BusyError                      a loaded pair is in use, or a later call has taken its caches
├── OptionError                    an option of a call is out of its range; exit code 2
├── ChoiceError                    a name that is in no table; lists the table; exit code 2
└── ParityError                    checked, and different; exit code 3

A message says *what, got X, expected Y*; a hint says what to do. Several findings travel in one
error (`collect`), worst first, so that a user repairs a checkpoint once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class DraftrtError(Exception):
    """Base of every expected failure.

    Attributes:
        message: what went wrong, with the value found and the value expected.
        hint: what the user can do about it; may be empty.
        findings: what `collect` put together in this error; empty for a single one.
        exit_code: process exit status the command line uses for it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings: tuple[DraftrtError, ...] = ()

    def __str__(self) -> str:
        return f"{self.message}\n  Hint: {self.hint}" if self.hint else self.message


class SpecError(DraftrtError):
    """A model description contradicts itself, its checkpoint or its target."""


class CheckpointError(DraftrtError):
    """Tensors are missing, unexpected, of a wrong shape, or the file cannot be read."""


class UnsupportedError(DraftrtError):
    """Understood, and deliberately not supported."""


class ExportError(DraftrtError):
    """The graph could not be produced or does not match its module."""


class BuildError(DraftrtError):
    """TensorRT refused the graph or died while building it."""


class BundleError(DraftrtError):
    """Manifest and files of a bundle disagree, or the folder cannot be written."""


class BackendError(DraftrtError):
    """A backend or package is missing, or cannot run on this machine."""


class FeedError(DraftrtError):
    """An array given to a graph does not fit its signature."""


class BusyError(DraftrtError):
    """A loaded pair is in use, or a later call has taken its caches."""


class OptionError(DraftrtError, ValueError):
    """An option of a call is of a wrong kind or out of its range."""

    exit_code = 2


class ChoiceError(DraftrtError):
    """A name was given that is none of those there are."""

    exit_code = 2


class ParityError(DraftrtError):
    """Two computations were compared and differ."""

    exit_code = 3


def collect(findings: Sequence[DraftrtError]) -> None:
    """Raise all findings as one error, or return when there are none.

    The class is that of the first finding; each keeps its own hint on the line below it. Findings
    that were put together before are counted one by one, and what is said twice is told once.

    Raises:
        DraftrtError: of the first finding's class, if there is any finding.
    """
    if not findings:
        return
    each = [one for finding in findings for one in (finding.findings or (finding,))]
    findings = list({(one.message, one.hint): one for one in each}.values())
    if len(findings) == 1:
        raise findings[0]
    lines = [f"{len(findings)} problems found:"]
    for number, finding in enumerate(findings, start=1):
        lines.append(f"  {number}. " + finding.message.replace("\n", "\n     "))
        if finding.hint:
            lines.append(f"     Hint: {finding.hint}")
    error = type(findings[0])("\n".join(lines))
    error.findings = tuple(findings)
    raise error


# What moves a cursor, changes colours or sends answers; line breaks and tabs stay.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text with control characters written out, as ``\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
