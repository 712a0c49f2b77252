"""Toy checkpoints of every publisher's format, written once, and the real `draftrt inspect`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from draftrt.export.checkpoint.target import TargetCheckpoint, read_target
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

Draft = Callable[..., Path]
Inspect = Callable[..., Result]
Mutate = Callable[[Path, Path], None]


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target that every toy drafter is made for: 6 layers, width 40, vocabulary 264."""
    return write_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="session")
def target(target_folder: Path) -> TargetCheckpoint:
    return read_target(target_folder)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Kind, Path]:
    """One untouched checkpoint of each kind; speculators' DSpark has a reduced vocabulary."""
    folder = tmp_path_factory.mktemp("toys")
    reduced = {Kind.SPECULATORS_DSPARK: 96}
    return {
        kind: write_drafter(
            folder / kind.value, ToyDrafter(kind=kind, draft_vocab_size=reduced.get(kind))
        )
        for kind in Kind
    }


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """Write a toy drafter: `draft(Kind.X, field=value, ...)`."""

    def write(kind: Kind, **fields: Any) -> Path:
        return write_drafter(tmp_path / "draft", ToyDrafter(kind=kind, **fields))

    return write


@pytest.fixture
def other_target(tmp_path: Path) -> Callable[..., Path]:
    """Write a target of one's own: `other_target(num_layers=4)`."""

    def write(**fields: Any) -> Path:
        return write_target(tmp_path / "other-target", ToyTarget(**fields))

    return write


@pytest.fixture
def inspect() -> Inspect:
    """Run `draftrt inspect`; an exception that is no expected failure keeps its traceback."""

    def run(*arguments: str | os.PathLike[str]) -> Result:
        line = ["inspect", *(os.fspath(argument) for argument in arguments)]
        return CliRunner().invoke(group, line, catch_exceptions=False)

    return run


@pytest.fixture
def with_config(tmp_path: Path) -> Callable[[Path, Any], Path]:
    """Return a checkpoint with another config.json, sharing the weights of the original."""

    def write(original: Path, config: Any) -> Path:
        folder = tmp_path / "with-config"
        if not folder.exists():
            folder.mkdir()
        for file in original.glob("*.safetensors*"):
            if not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "config.json").write_text(text, encoding="utf-8")
        return folder

    return write
