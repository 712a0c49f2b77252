"""TensorRT-Edge-LLM's exporter on the same checkpoint, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from draftrt.errors import BackendError
from tests.size.rows import Checkpoints, Row

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
