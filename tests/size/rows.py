"""Exports and builds at published dimensions, each in a process of its own, against their bars.

Weights are random. The peak of an export is the kernel's own mark (VmHWM) at the end of its
process; that of a build is the build process's, from the manifest. `getrusage` is no measure of a
child: the peak of the parent is carried over into it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from draftrt.errors import BackendError
from draftrt.files import sync
from tests.size.published import write_system

GB = 10**9
OWN_PEAK = """
import sys
from pathlib import Path
from draftrt.cli import main
try:
    main()
finally:
    text = Path("/proc/self/status").read_text()
    print("peak", int(text.split("VmHWM:")[1].split()[0]) * 1024, flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        name: what was done.
        seconds: wall time of the process, its start and end included.
        peak_bytes: its peak resident memory.
        bars: what is asked for, as text, to whether it is met.
        note: sizes, or why it failed.
        load: load average of the machine when it began.
    """

    name: str
    seconds: float
    peak_bytes: int
    bars: dict[str, bool]
    note: str
    load: float


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The random checkpoints of one system."""

    draft: Path
    target: Path


def checkpoints(name: str, folder: Path, *, whole_target: bool = False) -> Checkpoints:
    """Write a system's checkpoints where they are not there yet."""
    done = folder / name / f"written{'-whole' if whole_target else ''}"
    places = Checkpoints(folder / name / "draft", folder / name / "target")
    if not done.is_file():
        shutil.rmtree(folder / name, ignore_errors=True)
        write_system(name, folder, whole_target=whole_target)
        done.touch()
    return places


def run_export(words: Sequence[str]) -> tuple[float, int]:
    """Run ``draftrt export`` in a process of its own; return wall seconds and peak memory.

    Raises:
        BackendError: it failed; holds what it said.
    """
    started = perf_counter()
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", OWN_PEAK, "export", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    seconds = perf_counter() - started
    if done.returncode:
        raise BackendError(f"draftrt export failed: {done.stderr.strip()[-600:]}")
    return seconds, int(done.stdout.rsplit("peak ", 1)[1])


def run_build(bundle: Path, sms: Sequence[int]) -> tuple[float, int, int]:
    """Build the draft plan of a bundle; return wall seconds, peak memory and plan size."""
    from draftrt.engines.build import build_plan
    from draftrt.engines.capabilities import Backend
    from draftrt.engines.options import BuildOptions

    options = BuildOptions(backend=Backend.TENSORRT_RTX, sms=tuple(sms))
    started = perf_counter()
    entry = build_plan(bundle, options, force=True).entry
    return perf_counter() - started, entry.peak_rss_bytes, entry.size_bytes


def copy_seconds(file: Path) -> float:
    """Return the time of copying a file and waiting until the disk has it."""
    place = file.with_name(f".{file.name}.copy")
    started = perf_counter()
    try:
        shutil.copyfile(file, place)
        with place.open("rb") as stream:
            sync(stream)
        return perf_counter() - started
    finally:
        place.unlink(missing_ok=True)


def limit(name: str, found: float, most: float, unit: str) -> tuple[str, bool]:
    """Return a bar as text and whether it is met."""
    return f"{name} {found:.2f} {unit} of {most:.2f}", found <= most


def weights_of(bundle: Path) -> int:
    """Return the bytes of the weights of a bundle's draft graph."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    return int(manifest["graphs"]["draft"]["weight_bytes"])


def export_row(
    name: str,
    words: Sequence[str],
    bars: Callable[[float, int], list[tuple[str, bool]]],
    note: str = "",
) -> Row:
    """Export and compare with the bars, which get seconds and peak bytes."""
    load = os.getloadavg()[0]
    seconds, peak = run_export(words)
    return Row(
        name=name,
        seconds=seconds,
        peak_bytes=peak,
        bars=dict(bars(seconds, peak)),
        note=note,
        load=load,
    )


def build_row(
    name: str,
    bundle: Path,
    bars: Callable[[float, int, int], list[tuple[str, bool]]],
    sms: Sequence[int] = (86, 89, 120),
) -> Row:
    """Build and compare with the bars, which get seconds, peak bytes and the plan's size."""
    load = os.getloadavg()[0]
    seconds, peak, size = run_build(bundle, sms)
    return Row(
        name=name,
        seconds=seconds,
        peak_bytes=peak,
        bars=dict(bars(seconds, peak, size)),
        note=f"plan {size / GB:.2f} GB, SM {', '.join(map(str, sms))}",
        load=load,
    )


PACKAGE = "tensorrt-edgellm"
POLL_S = 0.02


def rival_row(folder: Path, found: Checkpoints, own: Row, report: Callable[[str], None]) -> Row:
    """Export the drafter with TensorRT-Edge-LLM and compare with ``own``.

    Raises:
        BackendError: it cannot be installed, or fails.
    """
    program = _install(folder / "edgellm", report)
    out = folder / "edgellm-out"
    load = os.getloadavg()[0]
    words = [str(program), *_words(found, out)]
    report(" ".join(words))
    seconds, peak = _run(words)
    return Row(
        name="Qwen3-4B DFlash, TensorRT-Edge-LLM's exporter",
        seconds=seconds,
        peak_bytes=peak,
        bars={},
        note=f"{seconds / own.seconds:.2f} x the time and {peak / own.peak_bytes:.2f} x the memory "
        f"of draftrt export",
        load=load,
    )


def _words(found: Checkpoints, out: Path) -> list[str]:
    draft = ["--dflash-draft", "--dflash-draft-dir", str(found.draft)]
    return [str(found.target), str(out), *draft]


def _install(venv: Path, report: Callable[[str], None]) -> Path:
    """Install the package into an environment of its own, once; return its exporter."""
    program = venv / "bin" / "tensorrt-edgellm-export"
    if program.is_file():
        return program
    report(f"installing {PACKAGE} into {venv}: minutes")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    for words in ([sys.executable, "-m", "venv", str(venv)], [*pip, f"{PACKAGE}[export]"]):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BackendError(
                f"{PACKAGE} cannot be installed: {done.stderr.strip()[-400:]}",
                hint="run without RIVALS=1",
            )
    return program


def _run(
    words: Sequence[str], on_poll: Callable[[int], None] = lambda peak: None
) -> tuple[float, int]:
    """Run a program; return wall seconds and the peak memory of its process, polled.

    Args:
        words: the program and its arguments.
        on_poll: called with the peak in bytes each time it is looked at.
    """
    started = perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        peak, done = [0], threading.Event()

        def poll() -> None:
            status = Path(f"/proc/{process.pid}/status")
            while not done.wait(POLL_S):
                try:
                    text = status.read_text()
                except OSError:
                    return
                if "VmHWM:" in text:
                    peak[0] = int(text.split("VmHWM:")[1].split()[0]) * 1024
                    on_poll(peak[0])

        watcher = threading.Thread(target=poll)
        watcher.start()
        assert process.stdout is not None
        said = process.stdout.read()
        status = process.wait()
        done.set()
        watcher.join()
    if status:
        raise BackendError(f"{words[0]} failed: {said.decode(errors='replace')[-800:]}")
    return perf_counter() - started, peak[0]
