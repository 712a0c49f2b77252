"""What made a file: command line, time, versions. Written into every manifest and report."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from draftrt import __version__

PACKAGES = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "transformers",
    "polygraphy",
    "tensorrt-rtx",
    "tensorrt",
    "numpy",
)


def tool_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return name to version of draftrt, Python and every listed package that is installed."""
    versions = {"draftrt": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def command_line() -> str:
    """Return the command line of this process, quoted for a shell."""
    program = Path(sys.argv[0]).name
    return shlex.join([program if program != "__main__.py" else "draftrt", *sys.argv[1:]])


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
