"""What made a file, and the machine that a time was measured on."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from draftrt import __version__
from draftrt.errors import DraftrtError

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


STATUS, PROCESSORS = Path("/proc/self/status"), Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine at one moment.

    Attributes:
        processor: its name.
        num_cores: cores this process may use.
        load: mean number of runnable processes over the last minute; None where nobody counts.
    """

    processor: str
    num_cores: int
    load: float | None

    @property
    def is_busy(self) -> bool:
        """Whether others want so much of it that times say little."""
        return self.load is not None and self.load > 0.75 * self.num_cores


def this_machine() -> Machine:
    """Return this machine as it is now."""
    names = [
        line.partition(":")[2].strip()
        for line in (PROCESSORS.read_text() if PROCESSORS.is_file() else "").splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        processor=names[0] if names else platform.processor() or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def peak_memory_bytes() -> int | None:
    """Return the most memory this process has held so far; None where that is not told."""
    if not STATUS.is_file():
        return None
    sizes = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(sizes["VmHWM"].split()[0]) * 1024 if "VmHWM" in sizes else None


MACHINE, PROCESS = Path("/proc/meminfo"), Path("/proc/self/status")


def total_memory() -> int | None:
    """Return the machine's memory in bytes; None where nobody tells."""
    return _sizes(MACHINE).get("MemTotal")


def available_memory() -> int | None:
    """Return the bytes that this process can have without swapping; None where nobody tells.

    A limit of the process's address space (``ulimit -v``) counts, less what is taken of it.
    """
    available = _sizes(MACHINE).get("MemAvailable")
    try:
        import resource
    except ImportError:  # Windows
        return available
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return available
    left = max(0, limit - _sizes(PROCESS).get("VmSize", 0))
    return left if available is None else min(left, available)


def check_available(
    needed: int, what: str, kind: type[DraftrtError], *, counted: str, hint: str
) -> None:
    """Refuse work that this process has not the memory for.

    Args:
        needed: bytes.
        what: what takes them, as the subject of a sentence.
        kind: class of the error.
        counted: the parts, in words.
        hint: what takes less.

    Raises:
        DraftrtError: of the class, with the numbers.
    """
    free = available_memory()
    if free is None or needed <= free:
        return
    raise kind(
        f"not enough memory: {what} takes about {in_gb(needed)}, this process can have "
        f"{in_gb(free)}; {counted}",
        hint=f"close other programs, or {hint}",
    )


def in_gb(size: int) -> str:
    """Return a number of bytes as text: ``1.4 GB``."""
    return f"{size / 1e9:.1f} GB"


def _sizes(table: Path) -> dict[str, int]:
    """Return the lines ``Name: 12 kB`` of a file of /proc, in bytes."""
    if not table.is_file():
        return {}
    words = [line.split() for line in table.read_text(encoding="utf-8").splitlines()]
    return {w[0].rstrip(":"): int(w[1]) * 1024 for w in words if len(w) == 3 and w[2] == "kB"}
