"""A signal ends a command in order, and never in the middle of an import."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import started

# A module whose import lasts until it is told to go on, and that says when it is half done.
SLOW = """
import sys
print("importing", flush=True)
sys.stdin.readline()
print("imported", flush=True)
"""
# For ever, and steps of Python between which a handler can run. A signal that comes just before a
# call that waits is handled after it only.
FOREVER = """
import time
def forever():
    while True:
        time.sleep(0.01)
def steps():
    for _ in range(1000):
        pass
"""
PROGRAM = """
from draftrt.lifecycle import ending_in_order
try:
    with ending_in_order():
        import slow_module
        print("working", flush=True)
        forever()
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("when", ["importing", "working"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_an_import_and_then_unwinds(
    number: signal.Signals, when: str, tmp_path: Path, root: Path
) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]\n{FOREVER}\n{PROGRAM}"
    said: list[str] = []
    with started([sys.executable, "-c", code]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if when == "working":
            process.stdin.write("go on\n")
            process.stdin.flush()
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == when:
                break
        process.send_signal(number)  # it is there before the process reads on
        out, error = process.communicate("go on\n" if when == "importing" else None)
    said += out.splitlines()
    assert said[:2] == ["importing", "imported"]
    assert said[-1] == "cleaned up"
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in error
    else:
        assert process.returncode == 128 + number
        assert error == ""


# The signal comes while Python runs code whose exceptions it ignores.
IGNORED = """
import os, weakref
from draftrt.lifecycle import ending_in_order
class Thing:
    def __del__(self):
        if {is_finaliser}:
            os.kill(os.getpid(), {number})
            steps()
def gone(reference):
    os.kill(os.getpid(), {number})
    steps()
with ending_in_order():
    thing = Thing()
    kept = None if {is_finaliser} else weakref.ref(thing, gone)
    del thing
    print("went on", flush=True)
    forever()
"""
TWICE = """
import os
from draftrt.lifecycle import ending_in_order
try:
    with ending_in_order():
        try:
            os.kill(os.getpid(), {first})
            forever()
        finally:
            for number in {then}:
                os.kill(os.getpid(), number)
                steps()
            print("cleaned up", flush=True)
finally:
    os.kill(os.getpid(), {first})
    steps()
    print("at the end", flush=True)
"""


def run_program(root: Path, text: str) -> tuple[int, str, str]:
    code = f"import sys; sys.path.insert(0, {str(root)!r})\n{FOREVER}\n{text}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("is_finaliser", [True, False])
def test_a_signal_is_not_lost_where_python_ignores_exceptions(
    is_finaliser: bool, root: Path
) -> None:
    text = IGNORED.format(is_finaliser=is_finaliser, number=int(signal.SIGTERM))
    code, out, error = run_program(root, text)
    assert (code, error) == (128 + signal.SIGTERM, "")
    assert out in ("", "went on\n")  # it may be raised again before that is said


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_later_signals_do_not_break_off_the_cleaning_up(first: signal.Signals, root: Path) -> None:
    then = [int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)]
    code, out, error = run_program(root, TWICE.format(first=int(first), then=then))
    assert out == "cleaned up\nat the end\n"
    if first == signal.SIGINT:
        assert error.count("KeyboardInterrupt") == 1
    else:
        assert (code, error) == (128 + first, "")


# A signal comes with each file that is renamed or removed.
WHOLE = """
import os, sys
from pathlib import Path
from draftrt.bundle import MANIFEST, new_bundle
from draftrt.lifecycle import RETRY_S, ending_in_order
place = Path(sys.argv[1])
(place / MANIFEST).write_text("old")
(place / "other").write_text("old")
def after(function):
    def called(*args, **named):
        result = function(*args, **named)
        os.kill(os.getpid(), {number})
        time.sleep(2 * RETRY_S)  # it is tried again meanwhile
        return result
    return called
with ending_in_order():
    with new_bundle(place, force=True) as folder:
        (folder / MANIFEST).write_text("new")
        (folder / "other").write_text("new")
        {call} = after({call})
    forever()
"""


@pytest.mark.parametrize("call", ["Path.replace", "os.unlink", "os.rmdir"])
def test_a_bundle_is_replaced_whole(call: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    text = WHOLE.format(number=int(signal.SIGTERM), call=call)
    text = text.replace("sys.argv[1]", repr(str(tmp_path / "bundle")))
    code, _, error = run_program(root, text)
    assert (code, error) == (128 + signal.SIGTERM, "")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    found = {path.name: path.read_text() for path in (tmp_path / "bundle").iterdir()}
    assert found == {"manifest.json": "new", "other": "new"}


def test_a_signal_that_had_to_wait_until_the_end_comes_there(root: Path) -> None:
    text = """
import os
from draftrt.lifecycle import ending_in_order, whole
@whole
def work():
    os.kill(os.getpid(), {number})
    steps()
with ending_in_order():
    work()
    print("went on", flush=True)
"""
    number = int(signal.SIGTERM)
    assert run_program(root, text.format(number=number)) == (128 + number, "went on\n", "")


def test_other_ignored_exceptions_are_still_told(root: Path) -> None:
    text = IGNORED.format(is_finaliser=True, number=int(signal.SIGTERM))
    text = text.replace("os.kill(os.getpid(), 15)", "raise ValueError('told')")
    code, out, error = run_program(root, text.replace("forever()", "pass"))
    assert (code, out) == (0, "went on\n")
    assert "ValueError: told" in error


def test_an_ignored_signal_stays_ignored_and_handlers_come_back() -> None:
    from draftrt.lifecycle import ending_in_order

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
