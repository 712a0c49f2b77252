"""Processes that end in every way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftrt.engines import process
from tests.waiting import is_gone, until


def run(code: str, folder: Path, timeout_s: float = 300) -> process.ChildEnding:
    return process.run(
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


def test_a_process_without_an_end_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)"
    )
    log = tmp_path / "log"

    def clock() -> float:  # the limit is reached once the grandchild is there
        return 100.0 if log.exists() and log.read_text().endswith("\n") else 0.0

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=clock))
    ending = run(code, tmp_path, timeout_s=50)
    assert ending.timed_out
    assert ending.describe() == "was stopped at the time limit, after 100.0 s"
    until(lambda: is_gone(int(log.read_text())))


def test_an_exception_while_waiting_ends_the_process(tmp_path: Path) -> None:
    def children() -> set[str]:
        tasks = Path("/proc/self/task").iterdir()
        return {pid for task in tasks for pid in (task / "children").read_text().split()}

    before, started = children(), set[str]()

    def interrupt(seconds: float) -> None:
        started.update(children() - before)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.run(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env=os.environ,
            cwd=tmp_path,
            log=tmp_path / "log",
            timeout_s=300,
            on_tick=interrupt,
        )
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_sigterm_unwinds_inside_the_block_only() -> None:
    def terminated() -> None:
        with process.terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        terminated()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with process.terminable(), process.uninterrupted():
            os.kill(os.getpid(), number)
        with process.terminable():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_an_interrupt_waits_for_the_end_of_an_uninterrupted_block() -> None:
    reached = []

    def interrupted() -> None:
        with process.uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached
