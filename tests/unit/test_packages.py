"""A command whose package is not installed names the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from draftrt.backends import EXTRAS, absence, import_package, require
from draftrt.cli import group
from draftrt.errors import BackendError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.spec import Precision
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

# Runs commands in an interpreter that finds none of some packages; prints what each ends with.
WITHOUT = """
import json, sys
from importlib.machinery import PathFinder

missing, lines = json.loads(sys.argv[1])

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in missing:
            return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Others

from click.testing import CliRunner
from draftrt.cli import group

for name, words in lines:
    done = CliRunner().invoke(group, [*name.split(), *words])
    print(json.dumps([name, done.exit_code, done.stderr]), flush=True)
"""
DRAFT, TARGET = "tests/assets/tiny-dflash", "tests/assets/tiny-target"
# Arguments with which a command begins its work; {bundle}, {out} and {prompts} are filled in.
WORDS = {
    "export": [DRAFT, "--target", TARGET, "-o", "{out}"],
    "inspect": [DRAFT, "--target", TARGET],
    "plan": [DRAFT, "--target", TARGET],
    "build": ["{bundle}", "--sm", "86"],
    "run": ["{bundle}", "--prompt", "a", "--max-tokens", "8"],
    "chat": ["{bundle}"],
    "serve": ["{bundle}", "--port", "0", "--host", "203.0.113.1", "--no-auth"],
    "bench": ["{bundle}", "--prompts", "{prompts}", "--raw", "--max-tokens", "8"],
    "engine": [DRAFT, "--target", TARGET, "-o", "{out}", "--sm", "86"],
    "report": ["{bundle}", "-o", "{out}"],
    "doctor acceptance": ["{bundle}", "--prompts", "{prompts}", "--max-tokens", "8"],
    "validate bisect": ["{bundle}"],
    "validate golden": ["tests/golden/zlab-dflash"],
    "validate matrix": ["--draft", DRAFT, "--target", TARGET],
    "validate parity": ["{bundle}"],
    "validate ranges": ["{bundle}"],
    "validate reuse": ["{bundle}", "--cases", "1", "--longest", "8", "--max-tokens", "1"],
    "validate record": [DRAFT, "--target", TARGET, "-o", "{out}"],
    "validate record-trajectories": [
        *[DRAFT, "--target", TARGET, "-o", "{out}", "--prompts", "{prompts}"],
    ],
    "validate trajectories": [
        *["tests/golden-pairs/expected-dspark.json", "--draft", "tests/assets/tiny-dspark"],
        *["--target", TARGET],
    ],
}
NEED_NONE = {"inspect", "pairs", "plan", "verify"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    draft = write_drafter(folder / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    options = ExportOptions(max_context=128, precision=Precision.FP16)
    return export_bundle(draft, write_target(folder / "target"), folder / "bundle", options)


def commands(found: click.Command, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the command line that is no group."""
    if not isinstance(found, click.Group):
        yield " ".join(above)
        return
    context = click.Context(found)
    for name in found.list_commands(context):
        inner = found.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*above, name))


def ends(
    missing: list[str], names: list[str], root: Path, bundle: Path, folder: Path
) -> dict[str, tuple[int, str]]:
    """How commands end without some packages: name to exit status and standard error.

    Each is asked for its help too, which needs none but those of every install.
    """
    prompts = folder / "prompts.txt"
    prompts.write_text("a song of three bags\n" * 3)
    values = {"bundle": bundle, "prompts": prompts}
    lines = [
        (name, [word.format(**values, out=folder / f"out-{name}") for word in words])
        for name in names
        for words in (WORDS[name], ["--help"])
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps([missing, lines])],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    every = [json.loads(line) for line in done.stdout.splitlines()]
    rows, helps = every[::2], every[1::2]
    is_core = any(EXTRAS.get(one) == "" for one in missing)  # every install has it
    assert is_core or [name for name, status, _ in helps if status] == []
    for name, status, error in rows:
        out = folder / f"out-{name}"
        if status and out.exists():  # what an import of transformers misses shows at the last step
            assert (name, (out / "manifest.json").exists()) == ("engine", True), (out, error)
    return {name: (status, error) for name, status, error in rows}


def test_every_command_of_a_plain_install_works_or_names_its_extra(
    root: Path, bundle: Path, tmp_path: Path
) -> None:
    names = [name for name in commands(group) if name in WORDS]
    assert set(commands(group)) - set(names) <= NEED_NONE, "add the command to WORDS"
    extras = [package for package, extra in EXTRAS.items() if extra]
    found = ends(extras, names, root, bundle, tmp_path)
    assert list(found) == names
    for name, (status, error) in found.items():
        if name in NEED_NONE:
            assert status == 0, (name, error)
            continue
        assert status == 1, (name, error)
        assert "Hint: pip install 'draftrt[" in error, (name, error)
        assert "Traceback" not in error, (name, error)


@pytest.mark.extended
@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_a_command_works_without_a_package_or_names_it_with_its_extra(
    package: str, root: Path, bundle: Path, tmp_path: Path
) -> None:
    found = ends([package], list(WORDS), root, bundle, tmp_path)
    wrong = {
        name: (status, error)
        for name, (status, error) in found.items()
        if "Traceback" in error
        or "a defect of draftrt" in error
        or not (status in (0, 3) or (status == 1 and is_named(package, error)))
    }
    assert not wrong


def is_named(package: str, error: str) -> bool:
    """Whether an error says what is missing and how to get it, or that it is of another cause."""
    is_missing = package in error and "Hint: pip install" in error
    return is_missing or "no usable NVIDIA GPU" in error


@pytest.mark.extended
@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("torch", ["export", "engine", "validate bisect", "validate golden"]),
        ("onnx", ["export", "engine", "validate bisect", "validate matrix"]),
        ("onnxruntime", ["export", "run", "bench", "engine", "validate parity"]),
        ("polygraphy", ["build", "engine", "report", "validate parity", "validate matrix"]),
        ("tensorrt_rtx", ["build", "engine"]),
    ],
)
def test_one_package_that_is_missing_is_named_with_its_extra(
    package: str, names: list[str], root: Path, bundle: Path, tmp_path: Path
) -> None:
    for name, (status, error) in ends([package], names, root, bundle, tmp_path).items():
        assert status == 1, (name, error)
        assert package in error, (name, error)
        assert "Hint: pip install 'draftrt[" in error, (name, error)


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    require("json", what="it")
    assert absence("jinja2", what="it").hint == "pip install draftrt"
    assert (
        absence("torch", "transformers", what="it", extra="hf").hint == "pip install 'draftrt[hf]'"
    )
    assert str(absence("torch", "onnx", "onnxruntime", what="it")) == (
        "it needs the packages torch, onnx and onnxruntime, which are not installed\n"
        "  Hint: pip install 'draftrt[export,ort]'"
    )
    monkeypatch.setitem(EXTRAS, "no_such_package", "rtx")
    says = "it needs the package no_such_package, which is not"
    with pytest.raises(BackendError, match=says):
        require("json", "no_such_package", what="it")
    with pytest.raises(BackendError, match=says):
        import_package("no_such_package", what="it")


def test_a_package_that_cannot_be_loaded_is_no_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_one.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EXTRAS, "broken_one", "rtx")
    with pytest.raises(BackendError) as told:
        import_package("broken_one", what="it")
    assert str(told.value) == (
        "the package broken_one cannot be loaded: No module named 'a_package_that_nobody_has'\n"
        "  Hint: pip install --force-reinstall 'draftrt[rtx]'"
    )
