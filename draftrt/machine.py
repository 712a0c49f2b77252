"""What a time was measured on: processor, cores, how busy it was, and this process's memory."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

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
