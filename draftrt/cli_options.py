"""Options that several commands share: places to write to, numbers, kinds of choices."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from draftrt.bundle_files import Verify
from draftrt.codec import path_problem
from draftrt.errors import DraftrtError, SpecError, UnsupportedError
from draftrt.files import cannot_write, write_atomically
from draftrt.quantization import Part, Prefer, Scheme, parse_quantization
from draftrt.spec import Family, Precision

TARGET_ARRAYS = ("logits", "features")  # of a target's recorded answers


class InputPath(click.Path):
    """A path at which something can be; what reads it says what has to be there."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, or fail as wrong usage."""
        if problem := path_problem(value):
            self.fail(problem, param, ctx)
        return Path(value)


class CheckpointPath(InputPath):
    """A checkpoint's folder, or its name on the hub, which `named_checkpoints` takes for it."""

    name = "FOLDER or OWNER/NAME[@REVISION]"

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path; what begins with a dot is a folder, whatever else its form says."""
        path = super().convert(value, param, ctx)
        text = os.fspath(value)
        return path.absolute() if text.startswith(("./", "../")) else path


def named_checkpoints(
    *parameters: str, headers_only: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take names of the hub for folders.

    Args:
        parameters: the command's parameters that may hold one, or several.
        headers_only: the command describes a checkpoint: its weights stay on the hub.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapped(*args: Any, **given: Any) -> None:
            from draftrt.hub.fetch import local_folder
            from draftrt.hub.headers import described_folders

            if headers_only:
                with described_folders(*(given[name] for name in parameters)) as folders:
                    function(*args, **(given | dict(zip(parameters, folders, strict=True))))
                return
            for name in parameters:
                value = given[name]
                is_many = isinstance(value, tuple)
                folders = [local_folder(one) for one in (value if is_many else (value,))]
                given[name] = tuple(folders) if is_many else folders[0]
            function(*args, **given)

        return wrapped

    return decorate


class OutputFile(InputPath):
    """A path at which a file can be written: in a folder that exists, and no folder itself."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, that of a link's file for a link, or fail as wrong usage."""
        path = super().convert(value, param, ctx)
        if path.is_dir():
            self.fail(f"{path}: got a folder, expected the name of a file", param, ctx)
        if path.exists() and not path.is_file():
            self.fail(f"{path}: got a device or pipe, expected the name of a file", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: no such folder: {path.parent}", param, ctx)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            self.fail(f"{path}: not to be written to: {path.parent}", param, ctx)
        return path.resolve() if path.is_symlink() else path


class OutputFolder(InputPath):
    """A path at which a folder can be made: below a folder that may be written to."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """Return the path, or fail as wrong usage."""
        path = super().convert(value, param, ctx)
        if path.is_symlink() and not path.exists():
            there = path.readlink()
            self.fail(f"{path}: is a link to {there}, which is not there", param, ctx)
        above = next((one for one in path.absolute().parents if one.exists()), path.absolute())
        if not above.is_dir():
            self.fail(f"{path}: lies below a file: {above}", param, ctx)
        if not os.access(above, os.W_OK | os.X_OK):
            self.fail(f"{path}: not to be written to: {above}", param, ctx)
        return path


def check_places(
    outputs: Mapping[str, Path | None], *, inputs: Iterable[Path | None], bundle: Path | None = None
) -> None:
    """Refuse outputs that would overwrite each other or what the command reads.

    Args:
        outputs: option to its file; None where it is not given.
        inputs: files and folders that are read.
        bundle: a bundle that is read; it holds its own files alone.

    Raises:
        click.UsageError: names the first such file.
    """
    named: dict[Path, str] = {}
    read = [one.resolve() for one in inputs if one is not None]
    for option, path in outputs.items():
        if path is None:
            continue
        place = path.resolve()
        if place in named:
            raise click.UsageError(
                f"{path}: got one file for {named[place]} and {option}, expected two files"
            )
        named[place] = option
        if bundle is not None and place.is_relative_to(bundle.resolve()):
            raise click.UsageError(
                f"{path}: lies in the bundle, which holds its own files alone; "
                "expected a file elsewhere"
            )
        if place.exists() and any(place.is_relative_to(one) for one in read):
            raise click.UsageError(
                f"{path}: got a file that the command reads for {option}, expected another one"
            )


def check_replaced(out: Path, *, inputs: Iterable[Path | None]) -> None:
    """Refuse a folder to write, or to replace, that holds what the command reads.

    Raises:
        click.UsageError: names the first input that lies in it.
    """
    place = out.resolve()
    for one in inputs:
        if one is not None and one.resolve().is_relative_to(place):
            raise click.UsageError(
                f"--out {out}: got a folder that holds {one}, which is read; expected another one"
            )


def write_output(path: Path, text: str) -> None:
    """Write a file in one step.

    Raises:
        DraftrtError: it cannot be written.
    """
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error, DraftrtError, hint="give a file elsewhere") from error


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that refuses ``nan`` and ``inf`` too."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail as wrong usage."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"got {number}, expected a finite number", param, ctx)
        return number


def parse_limits(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Return limits given as ``logits=1e-4``, each once, or fail as wrong usage."""
    limits: dict[str, float] = {}
    for value in values:
        name, sign, number = value.partition("=")
        if not sign or name not in TARGET_ARRAYS or name in limits:
            expected = " or ".join(f"{one}=NUMBER" for one in TARGET_ARRAYS)
            raise click.BadParameter(
                f"got {value!r:.60}, expected {expected}, each once", ctx, param
            )
        limits[name] = FiniteRange(0).convert(number, param, ctx)
    return limits


def parse_layers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Return layers given as ``1,3,6``, or fail as wrong usage."""
    if value is None:
        return None
    try:
        layers = tuple(int(one) for one in value.split(","))
    except ValueError:
        layers = ()
    if not layers or min(layers) < -1 or len(set(layers)) < len(layers):
        raise click.BadParameter(
            f"got {value!r:.60}, expected different whole numbers from -1 on, as 1,3,6", ctx, param
        )
    return layers


def parse_option(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, dict[Part, Scheme]]:
    """Return what each graph's parts are stored in, or fail as wrong usage."""
    try:
        return parse_quantization(values)
    except (SpecError, UnsupportedError) as error:
        raise click.BadParameter(str(error), ctx, param) from error


def sm_numbers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Return ``86,89,120`` as numbers, or fail as wrong usage."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"got {value!r}, expected numbers such as 86,89,120", ctx, param)
    return tuple(int(part) for part in parts)


kept_for_option = click.option(
    "--sm",
    "sms",
    metavar="SM,...",
    callback=sm_numbers,
    help="GPUs that the graphs are for: from 89 on a checkpoint's FP8 codes are kept, which others "
    "cannot multiply with.  [default: any from 86 on]",
)
prefer_option = click.option(
    "--prefer",
    type=click.Choice([one.value for one in Prefer]),
    help="Of the forms that hold a checkpoint's own codes: exact takes those that round nothing "
    "and sum once, small those of the fewest bytes.  [default: what runs fast on ONNX Runtime and "
    "the GPUs]",
)
MOST_THREADS = 1024  # more is a slip of the hand
Command = TypeVar("Command", bound=Callable[..., Any])

threads_option = click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads of each model.",
)
device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where ONNX Runtime and a Hugging Face target run.",
)


ignore_memory_option = click.option(
    "--ignore-memory",
    is_flag=True,
    help="Go on where the memory that is counted is more than there is.",
)


def precision_option(default: Precision, about: str | None = None) -> Callable[[Command], Command]:
    """Return the option ``--precision`` of a command."""
    choices = click.Choice([one.value for one in Precision])
    return click.option(
        "--precision", type=choices, default=default.value, show_default=True, help=about
    )


def json_option(about: str) -> Callable[[Command], Command]:
    """Return the option ``--json`` of a command that prints JSON instead of text."""
    return click.option("--json", "is_json", is_flag=True, help=about)


quantize_option = click.option(
    "--quantize",
    "quantization",
    metavar="[GRAPH:][PART=]SCHEME",
    multiple=True,
    callback=parse_option,
    help="Store weights in int8, int4 or fp8. PART is linear, head or embedding (int8 alone); a "
    "scheme without one is for linears and head. GRAPH is draft or target; without one it is for "
    "both. Repeatable.",
)


MOST_ROUNDS = 1000  # of a sequence
rounds_option = click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(4, MOST_ROUNDS),
    default=4,
    show_default=True,
    help="Rounds of the short and of the long sequence each.",
)


ignore_key_option = click.option(
    "--ignore-key",
    "ignore_keys",
    metavar="[target:]KEY",
    multiple=True,
    help="Unknown config key without effect, of the drafter or, with target:, of the target. "
    "Repeatable.",
)


family_option = click.option(
    "--family",
    type=click.Choice([one.value for one in Family]),
    help="What the drafter is, where its config names another family or an unknown class.",
)
alignment_option = click.option(
    "--sample-from-anchor/--no-sample-from-anchor",
    default=None,
    help="Alignment, where the config leaves it open.",
)


def stated_family(family: str | None) -> Family | None:
    """Return the family that `family_option` was given; None where it was not."""
    return None if family is None else Family(family)


def _kind(ctx: click.Context, param: click.Parameter, value: bool) -> Verify:
    return Verify.NONE if value else Verify.REMEMBERED


no_verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    callback=_kind,
    help="Compare the sizes of the bundle's files alone, not their content.",
)
