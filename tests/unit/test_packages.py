"""A command whose package is not installed names the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from draftrt.backends import EXTRAS, absence, require
from draftrt.cli import group
from draftrt.errors import BackendError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
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
    "bench": ["{bundle}", "--num-prompts", "1", "--max-tokens", "8"],
    "engine": [DRAFT, "--target", TARGET, "-o", "{out}", "--sm", "86"],
    "report": ["{bundle}", "-o", "{out}"],
    "doctor acceptance": ["{bundle}", "--prompts", "{prompts}", "--max-tokens", "8"],
    "validate bisect": ["{bundle}"],
    "validate golden": ["tests/golden/zlab-dflash"],
    "validate matrix": ["--draft", DRAFT, "--target", TARGET],
    "validate parity": ["{bundle}"],
    "validate ranges": ["{bundle}"],
    "validate record": [DRAFT, "--target", TARGET, "-o", "{out}"],
    "validate record-trajectories": [
        *[DRAFT, "--target", TARGET, "-o", "{out}", "--prompts", "{prompts}"],
    ],
    "validate trajectories": [
        *["tests/golden-pairs/expected-dspark.json", "--draft", "tests/assets/tiny-dspark"],
        *["--target", TARGET],
    ],
}
NEED_NONE = {"inspect", "plan", "verify"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    draft = write_drafter(folder / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    options = ExportOptions(max_context=64)
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
    """How commands end without some packages: name to exit status and standard error."""
    prompts, out = folder / "prompts.txt", folder / "out"
    prompts.write_text("a song\n")
    values = {"bundle": str(bundle), "out": str(out), "prompts": str(prompts)}
    lines = [(name, [word.format(**values) for word in WORDS[name]]) for name in names]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps([missing, lines])],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert not out.exists()
    return {name: (status, error) for name, status, error in rows}


def test_every_command_of_a_plain_install_works_or_names_its_extra(
    root: Path, bundle: Path, tmp_path: Path
) -> None:
    names = [name for name in commands(group) if name in WORDS]
    assert set(commands(group)) - set(names) <= NEED_NONE, "add the command to WORDS"
    found = ends(list(EXTRAS), names, root, bundle, tmp_path)
    assert list(found) == names
    for name, (status, error) in found.items():
        if name in NEED_NONE:
            assert status == 0, (name, error)
            continue
        assert status == 1, (name, error)
        assert "Hint: pip install 'draftrt[" in error, (name, error)
        assert "Traceback" not in error, (name, error)


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
    assert str(absence("torch", "onnx", "onnxruntime", what="it")) == (
        "it needs the packages torch, onnx and onnxruntime, which are not installed\n"
        "  Hint: pip install 'draftrt[export,ort]'"
    )
    monkeypatch.setitem(EXTRAS, "no_such_package", "rtx")
    with pytest.raises(BackendError, match="it needs the package no_such_package, which is not"):
        require("json", "no_such_package", what="it")
