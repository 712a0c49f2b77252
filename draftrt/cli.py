"""The command line: a group whose commands are imported when they are called.

Each stage keeps its own commands beside its code (``cli.py``); this file names them, so that
``draftrt --help`` loads nothing heavy, and has the one that is no stage's: ``verify``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path

import click

from draftrt import __version__
from draftrt.cli_options import InputPath, json_option
from draftrt.errors import BackendError
from draftrt.failure_cli import Ending, interrupted
from draftrt.lifecycle import ending_in_order

LAST_STREAM = 2  # standard error
COMMANDS = {
    "export": ("draftrt.export.cli", "export", "Trace a drafter (and target) into a bundle."),
    "inspect": (
        "draftrt.export.cli",
        "inspect",
        "Show every resolved fact of a checkpoint.",
    ),
    "plan": (
        "draftrt.validate.capacity.cli",
        "plan",
        "Tell what a pair takes and where it fits.",
    ),
    "build": ("draftrt.engines.cli", "build", "Build a TensorRT plan from a bundle."),
    "verify": (
        "draftrt.cli",
        "verify",
        "Compare every file of a bundle with its manifest.",
    ),
    "run": ("draftrt.runtime.cli", "run", "Decode a prompt with drafter and target."),
    "chat": ("draftrt.runtime.chat.cli", "chat", "Talk with a drafter and its target."),
    "serve": ("draftrt.runtime.server.cli", "serve", "Serve OpenAI's schema and a page."),
    "bench": (
        "draftrt.validate.bench.cli",
        "bench",
        "Measure speculation against plain decoding.",
    ),
    "validate": (
        "draftrt.validate.cli",
        "validate",
        "Check parity, golden cases, trajectories.",
    ),
    "report": ("draftrt.validate.report.cli", "report", "Write one HTML file about a bundle."),
    "doctor": (
        "draftrt.validate.doctor.cli",
        "doctor",
        "Find out why drafts are not accepted.",
    ),
    "pairs": ("draftrt.hub.cli", "pairs", "List published drafters, or those of a target."),
    "engine": ("draftrt.validate.engine.cli", "engine", "Export, build, check and try a pair."),
}


class LazyGroup(Ending, click.Group):
    """A click group that imports a command's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="draftrt")
def group() -> None:
    """Take a block drafter from its checkpoint to a low-latency GPU, and prove every step.

    Exit status: 0 done, 1 expected failure, 2 usage, 3 checked and different.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise BackendError(
            f"the working directory cannot be used: {error.strerror}",
            hint="change to one that exists",
        ) from error


@click.command()
@click.argument("bundle", type=InputPath())
@json_option("Print one JSON object instead of text.")
def verify(bundle: Path, is_json: bool) -> None:
    """Hash every file of BUNDLE and compare with its manifest; for after a copy to a device.

    Exit status 3 says that a file is not as it was written, and which.
    """
    from draftrt.bundle import examine, problem_lines
    from draftrt.errors import ParityError

    manifest, expected, problems = examine(bundle)
    unknown = sorted(name for name, one in expected.items() if not one.sha256)
    num_bytes = sum((bundle / name).stat().st_size for name in expected.keys() - problems.keys())
    if is_json:
        record = {
            "bundle": str(bundle),
            "ok": not problems,
            "files": len(expected),
            "bytes": num_bytes,
            "problems": dict(problems),
            "without_hash": unknown,
            "created": manifest.created,
        }
        click.echo(json.dumps(record, indent=1))
    if problems:
        lines = "; ".join(problem_lines(expected, problems))
        raise ParityError(
            f"{bundle}: {len(problems)} of {len(expected)} files are not as they were written: "
            f"{lines}",
            hint="copy the bundle again, or export it again",
        )
    if not is_json:
        click.echo(f"{bundle}: {len(expected)} files, {num_bytes / 1e6:.1f} MB, all as written")
        if unknown:
            click.echo(
                f"of {', '.join(unknown)} the manifest has no hash of every byte; a bundle that "
                "is exported or built again has"
            )


def _take_closed_streams() -> None:
    """Put the null device where a standard stream is closed (``2>&-``).

    Else the next file that is opened takes its number, and what libraries say goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def main() -> None:
    """Run the command line.

    PyTorch and transformers make a million objects that last. As the collector comes by default it
    takes a quarter of the time of loading them and of ending the process (docs/log.md has the
    figures): here it comes seldom, and at the end not at all.
    """
    gc.set_threshold(100_000, 20, 100)
    _take_closed_streams()
    try:
        with ending_in_order():
            group()
    except KeyboardInterrupt:
        sys.exit(interrupted())
    finally:
        gc.freeze()
