"""Odd numbers for every option of every command: one sentence, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from draftrt.cli import group

pytest.importorskip("onnxruntime")
NUMBERS = ["-1", "nan", "inf", "1e400", str(10**30), "1.5", "", "0x10", "1" * 5000]


def leaves(
    command: click.Command, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with its words."""
    if not isinstance(command, click.Group):
        yield above, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*above, name))


COMMANDS = dict(leaves(group))


def of_kind(*kinds: Any) -> list[tuple[tuple[str, ...], str]]:
    """Every parameter of such a type, with its command's words."""
    return [
        (words, parameter.name or "")
        for words, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter.type, kinds)
    ]


def line(words: tuple[str, ...], name: str, value: str, out: Path) -> list[str]:
    """Return a command line with ``value`` for one parameter, others as far as they are needed."""
    arguments, options = [], []
    for parameter in COMMANDS[words].params:
        given = value if parameter.name == name else None
        if given is None and parameter.required:
            is_choice = isinstance(parameter.type, click.Choice)
            given = parameter.type.choices[0] if is_choice else str(out / f"no-{parameter.name}")  # type: ignore[attr-defined]
        if given is None:
            continue
        if isinstance(parameter, click.Argument):
            arguments.append(given)
        else:
            options += (
                [f"{parameter.opts[0]}={given}"]
                if parameter.opts[0][:2] == "--"
                else [
                    parameter.opts[0],
                    given,
                ]
            )
    return [*words, *options, "--", *arguments]


def faults(words: list[str], expected: tuple[int, ...] = (1, 2)) -> str:
    """Run a command line in this process; say what is wrong with its end, if anything is."""
    done = CliRunner().invoke(group, words)
    is_sentence = "Error: " in done.stderr and "a defect of draftrt" not in done.stderr
    if done.exit_code in expected and is_sentence and "Traceback" not in done.output:
        return ""
    shown = [word[:60] for word in words]
    return f"{shown}: {done.exit_code}, {done.stderr[-300:]!r} {done.exception!r:.200}"


def test_every_command_is_tried() -> None:
    assert {("run",), ("export",), ("build",), ("validate", "parity")} <= set(COMMANDS)
    assert len(of_kind(click.IntRange, click.FloatRange)) > 30


def test_odd_numbers_are_told_for_every_option(tmp_path: Path) -> None:
    wrong = [
        faults(line(words, name, number, tmp_path))
        for words, name in of_kind(click.types.IntParamType, click.types.FloatParamType)
        for number in NUMBERS
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))
