"""Checkpoint folders as people have them: a hub's cache, and files that are no files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytestmark = pytest.mark.e2e


def draftrt(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)


def as_in_a_cache(folder: Path) -> Path:
    """Move a folder's files away and leave relative links, as the hub's cache has them."""
    blobs = folder.parent / f"{folder.name}-blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.move(path, blobs / f"{number:040x}")
        path.symlink_to(f"../{blobs.name}/{number:040x}")
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH)
    return write_drafter(tmp_path / "draft", toy), write_target(tmp_path / "target")


@pytest.mark.parametrize("weights", ["copy", "link"])
def test_a_pair_in_a_hubs_cache_is_exported_whole(
    weights: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    draft, target = map(as_in_a_cache, pair)
    out = tmp_path / "bundle"
    done = draftrt("export", draft, "--target", target, "-o", out, "--weights", weights)
    assert done.exit_code == 0, done.output
    assert set(Bundle.open(out).manifest.graphs) == {"draft", "target"}
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    shown = draftrt("inspect", draft, "--target", target)
    assert shown.exit_code == 0
    assert "no target graph" not in shown.stderr


def dangling(path: Path) -> None:
    path.symlink_to("../blobs/none")


def latin(path: Path) -> None:
    path.write_bytes(b'{"caf\xe9": 1}')


def twice(path: Path) -> None:
    path.write_text('{"hidden_size": 1, "hidden_size": 2}')


def deep(path: Path) -> None:
    path.write_text('{"a":' * 50_000)


@pytest.mark.parametrize("whose", ["draft", "target"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, dangling, Path.touch, latin, twice, deep])
@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_a_config_that_is_none_is_one_sentence(
    command: str, make: Callable[[Path], None], whose: str, pair: tuple[Path, Path]
) -> None:
    draft, target = pair
    path = (draft if whose == "draft" else target) / "config.json"
    path.unlink()
    make(path)
    done = draftrt(command, draft, "--target", target)
    assert done.exit_code == 1
    assert str(path) in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2  # and a hint
    assert "problems found" not in done.stderr
