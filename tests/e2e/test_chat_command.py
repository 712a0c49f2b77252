"""`draftrt chat`: from a script of lines, and on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import draftrt
from draftrt import DecodeOptions
from draftrt.bundle import write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.manifest import Costs
from tests.waiting import until

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("run")]

FIRST, SECOND = "Table of 3:", "Count from 4:"
LINE = r"[\d.]+ tokens/s · .*acceptance length \d\.\d\d"


def say(bundle: Path, text: str, *options: str) -> Result:
    words = ["chat", str(bundle), "--schedule", "all", *options]
    return CliRunner().invoke(group, words, input=text)


def answers(bundle: Path, *said: str, system: str = "", most: int = 12) -> list[str]:
    """What the pair answers, asked in Python with the history that a chat has."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    found = []
    with draftrt.load(bundle) as pair:
        for text in said:
            messages.append({"role": "user", "content": text})
            found.append(pair.generate(messages, DecodeOptions(max_tokens=most)).text)
            messages.append({"role": "assistant", "content": found[-1]})
    return found


def test_lines_of_a_script_are_said_with_their_history(bundle: Path) -> None:
    done = say(bundle, f"{FIRST}\n\n{SECOND}\n", "--max-tokens", "12")
    assert done.exit_code == 0, done.output
    assert done.stdout == "".join(f"{one}\n" for one in answers(bundle, FIRST, SECOND))
    assert len(re.findall(LINE, done.stderr)) == 2
    assert "x plain unknown" in done.stderr
    assert re.findall(r"\d+ tokens reused", done.stderr.splitlines()[1])
    assert "\x1b" not in done.output
    assert ">" not in done.stderr


def test_commands_change_what_the_next_answer_comes_from(bundle: Path) -> None:
    words = [FIRST, "/reset", "/system Be brief.", SECOND, "/plain", "/nope", "/quit", "never"]
    done = say(bundle, "\n".join(words), "--max-tokens", "12")
    assert done.exit_code == 0, done.output
    alone, systematic = answers(bundle, FIRST), answers(bundle, SECOND, system="Be brief.")
    assert done.stdout == f"{alone[0]}\n{systematic[0]}\n"
    for told in ("nothing was said", "system: Be brief.", "with the target alone", "no command"):
        assert told in done.stderr
    plain = say(bundle, f"{FIRST}\n", "--plain", "--max-tokens", "12")
    assert plain.stdout == f"{alone[0]}\n"
    assert "acceptance" not in plain.stderr


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("Table\\\nof 3:\n", "Table\nof 3:"),
        ('"""\nTable\n\nof 3:"""\n', "Table\n\nof 3:"),
        ('"""Table of 3:\n', FIRST),
        ("//reset\n", "/reset"),
        ("Table of 3:", FIRST),
    ],
    ids=["backslash", "block", "block without end", "slash", "no line end"],
)
def test_a_message_may_have_several_lines(bundle: Path, typed: str, said: str) -> None:
    done = say(bundle, typed, "--max-tokens", "12")
    assert done.stdout == f"{answers(bundle, said)[0]}\n", done.output


def test_a_conversation_that_fills_the_caches_says_so_and_a_script_stops(bundle: Path) -> None:
    done = say(bundle, f"{FIRST}\n" * 20, "--ignore-eos")
    assert done.exit_code == 1
    assert "cut at --max-tokens, or where the caches are full" in done.stderr
    assert re.search(r"the conversation has \d+ tokens, expected at most", done.stderr)
    assert "/reset forgets it" in done.stderr


def test_the_gain_over_plain_decoding_comes_from_the_bundles_costs(
    bundle: Path, tmp_path: Path
) -> None:
    timed = shutil.copytree(bundle, tmp_path / "timed")
    costs = Costs(draft_ms=1.0, verify_ms={1: 1000.0, 8: 1001.0}, context=8)
    name = "target graph, onnxruntime, cpu, 1 thread"
    write_manifest(timed, replace(read_manifest(timed), costs={name: costs}))
    done = say(timed, f"{FIRST}\n", "--max-tokens", "12")
    speed, gain = map(float, re.findall(r"([\d.]+) (?:tokens/s|x plain)", done.stderr))
    assert gain == pytest.approx(speed, rel=0.01, abs=0.1)  # one plain token a second


class Terminal:
    """A chat on a terminal of its own."""

    def __init__(self, bundle: Path, *options: str, **environment: str) -> None:
        self._end, other = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "draftrt", "chat", str(bundle), *options],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # takes it as its own
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(other)
        os.set_blocking(self._end, False)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def has(self, pattern: str) -> bool:
        with suppress(OSError):  # nothing yet, or the other end is gone
            self.seen += os.read(self._end, 1 << 16).decode(errors="replace")
        return re.search(pattern, self.seen) is not None

    def until(self, pattern: str) -> str:
        """Wait for a pattern and return what came up to it."""
        until(lambda: self.has(pattern), process=self.process)
        found = re.search(pattern, self.seen)
        assert found is not None
        told, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return told

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@contextmanager
def terminal(bundle: Path, *options: str, **environment: str) -> Iterator[Terminal]:
    talk = Terminal(bundle, *options, **environment)
    try:
        yield talk
    finally:
        talk.close()


def test_on_a_terminal_an_answer_can_be_ended_and_the_talk_goes_on(bundle: Path) -> None:
    """Ctrl-C in an answer, at the prompt, and in the next answer; Ctrl-D leaves."""
    with terminal(bundle, "--ignore-eos", "--show-drafts") as talk:
        assert "/help lists commands" in talk.until("> $")
        talk.type(f"{FIRST}\n")
        talk.until(r"\x1b\[32m")  # a draft that was kept
        talk.type("\x03")
        talk.until("(interrupted|caches are full)[^\n]*\n")
        talk.until("> $")
        talk.type("half a line\x03")
        talk.until("> $")
        talk.type("/system Be brief.\n")
        talk.until("system: Be brief")
        talk.until("> $")
        talk.type("/reset\n")
        talk.until("nothing was said")
        talk.until("> $")
        talk.type(f"{SECOND}\n")
        talk.until(r"\x1b\[2m[^\n]*tokens/s")
        talk.until("> $")
        talk.type("\x04")
        until(lambda: talk.process.poll() is not None)
        assert talk.process.returncode == 0


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["no", "dumb"])
@pytest.mark.extended
def test_no_colours_where_none_are_wanted(bundle: Path, setting: dict[str, str]) -> None:
    with terminal(bundle, "--show-drafts", "--max-tokens", "12", **setting) as talk:
        talk.until("> $")
        talk.type(f"{FIRST}\n")
        told = talk.until(LINE + "[^\n]*\n")
        assert not re.search(r"\x1b\[[0-9;]*m", told)
        talk.until("> $")
        talk.type("/quit\n")
        until(lambda: talk.process.poll() is not None)
        assert talk.process.returncode == 0
