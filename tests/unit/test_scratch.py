"""Folders that commands work in: those of killed ones go, those of living ones stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.bundle import new_bundle
from draftrt.files import REPLACED, scratch_folder

WRITER = """
import sys, time
from draftrt.bundle import new_bundle
with new_bundle(sys.argv[1]) as folder:
    (folder / "weights").write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(600)
"""


def write(bundle: Path) -> None:
    with new_bundle(bundle) as folder:
        (folder / "part").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start_writer(bundle: Path) -> subprocess.Popen[str]:
    """Start a process that has half a bundle when this returns."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(bundle)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_what_killed_commands_left_is_removed_by_the_next_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = []
    for name in ("bundle", "other"):
        writer = start_writer(tmp_path / name)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        left += [one for one in names(tmp_path) if one.startswith(f".{name}.partial-")]
    assert len(left) >= 1  # the second try has removed what the first left
    write(tmp_path / "bundle")
    assert names(tmp_path) == ["bundle"]
    assert "which a killed command left" in capsys.readouterr().err


def test_what_a_living_command_writes_is_left_alone(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "other")
    try:
        write(tmp_path / "bundle")
        partial, done = names(tmp_path)
        assert (partial.startswith(".other.partial-"), done) == (True, "bundle")
        assert names(tmp_path / partial) == ["weights"]
    finally:
        writer.kill()
        writer.communicate()
    write(tmp_path / "third")
    assert names(tmp_path) == ["bundle", "third"]


def test_other_hidden_folders_and_links_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".b.partial-12345678").symlink_to(elsewhere)
    for name in (".b.partial-1", ".git", "b.partial-12345678"):
        (folder / name).mkdir()
    (folder / ".b.partial-87654321").write_text("a file")
    before = names(folder)
    write(folder / "bundle")
    assert names(folder) == sorted([*before, "bundle"])
    assert (elsewhere / "mine").exists()


def test_the_only_copy_of_a_bundle_is_never_removed(tmp_path: Path) -> None:
    """Killed between the two renames, a replacement leaves the old bundle in a folder beside it."""
    old = tmp_path / f".bundle.{REPLACED}-12345678"
    (old / "bundle").mkdir(parents=True)
    write(tmp_path / "other")
    assert old.is_dir()
    write(tmp_path / "bundle")
    write(tmp_path / "third")
    assert names(tmp_path) == ["bundle", "other", "third"]


def test_a_scratch_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "a") as folder:
        (folder / "part").touch()
        assert folder.parent == tmp_path
    assert names(tmp_path) == []
