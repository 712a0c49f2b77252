"""Processes that end in every way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from draftrt.engines import child


def run(code: str, folder: Path, timeout_s: float = 20) -> child.Ending:
    return child.run(
        [sys.executable, "-c", code],
        env=os.environ,
        cwd=folder,
        log=folder / "log",
        timeout_s=timeout_s,
        on_tick=lambda _: None,
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("pass", "ended with status 0"),
        ("raise SystemExit(7)", "ended with status 7"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import os; os.abort()", "was ended by SIGABRT"),
    ],
)
def test_each_ending_is_told_apart(tmp_path: Path, code: str, text: str) -> None:
    ending = run(code, tmp_path)
    assert ending.describe().startswith(text)
    assert not ending.timed_out


def test_both_streams_go_to_the_log_in_order(tmp_path: Path) -> None:
    run("import sys; print('a', flush=True); print('b', file=sys.stderr)", tmp_path)
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_a_process_without_an_end_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)"
    )
    ending = run(code, tmp_path, timeout_s=1.5)
    assert ending.timed_out
    assert ending.describe().startswith("was stopped at the time limit")
    assert 1.5 <= ending.seconds < 10
    grandchild = Path(f"/proc/{(tmp_path / 'log').read_text().strip()}/status")
    deadline = time.monotonic() + 10
    while grandchild.exists() and "State:\tZ" not in grandchild.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_exception_while_waiting_ends_the_process(tmp_path: Path) -> None:
    def children() -> set[str]:
        tasks = Path("/proc/self/task").iterdir()
        return {pid for task in tasks for pid in (task / "children").read_text().split()}

    before, started = children(), set[str]()

    def interrupt(seconds: float) -> None:
        started.update(children() - before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env=os.environ,
            cwd=tmp_path,
            log=tmp_path / "log",
            timeout_s=20,
            on_tick=interrupt,
        )
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_sigterm_unwinds_inside_the_block_only() -> None:
    def terminated() -> None:
        with child.terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        terminated()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_waits_for_the_end_of_an_uninterrupted_block() -> None:
    reached = []

    def interrupted() -> None:
        with child.uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
