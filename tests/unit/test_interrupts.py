"""A signal ends a command in order, and never in the middle of an import."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A module that takes a while to import, and says when it is half done.
SLOW = """
import time
print("importing", flush=True)
time.sleep(0.4)
print("imported", flush=True)
"""
PROGRAM = """
import time
from draftrt.interrupts import ending_in_order
try:
    with ending_in_order():
        import slow_module
        print("working", flush=True)
        time.sleep(30)
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("when", ["importing", "working"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_an_import_and_then_unwinds(
    number: signal.Signals, when: str, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n{PROGRAM}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line.strip())
        if said[-1] == when:
            break
    started = time.monotonic()
    process.send_signal(number)
    out, error = process.communicate(timeout=20)
    said += out.split("\n")[:-1]
    assert time.monotonic() - started < 10
    assert said[:2] == ["importing", "imported"]
    assert said[-1] == "cleaned up"
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in error
    else:
        assert process.returncode == 128 + number
        assert error == ""


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    from draftrt.interrupts import ending_in_order

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, hung_up)
    assert {one: signal.getsignal(one) for one in before} == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
