"""Memory of this machine: what it has, and what a process can still have."""

from __future__ import annotations

from pathlib import Path

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


def _sizes(table: Path) -> dict[str, int]:
    """Return the lines ``Name: 12 kB`` of a file of /proc, in bytes."""
    if not table.is_file():
        return {}
    words = [line.split() for line in table.read_text(encoding="utf-8").splitlines()]
    return {w[0].rstrip(":"): int(w[1]) * 1024 for w in words if len(w) == 3 and w[2] == "kB"}
