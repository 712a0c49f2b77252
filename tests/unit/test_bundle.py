"""Making a bundle: what stays behind when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.bundle import Bundle, new_bundle
from draftrt.bundle_files import MANIFEST
from draftrt.errors import BundleError
from draftrt.files import write_atomically


def interrupted(bundle: Path, file: Path | None = None) -> None:
    """Write a file, into the scratch folder where none is named, and be interrupted."""
    with new_bundle(bundle) as folder:
        (file or folder / "part").write_text("half", encoding="utf-8")
        raise KeyboardInterrupt


def test_a_failure_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a" / "b" / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_somebody_else_put_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a" / "bundle", tmp_path / "a" / "other")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BundleError, match="cannot be made there"):
        new_bundle(tmp_path / "file" / "bundle").__enter__()


def test_success_puts_the_whole_folder_in_place(tmp_path: Path) -> None:
    with new_bundle(tmp_path / "a" / "bundle") as folder:
        (folder / "part").write_text("whole", encoding="utf-8")
        assert not (tmp_path / "a" / "bundle").exists()
    assert (tmp_path / "a" / "bundle" / "part").read_text(encoding="utf-8") == "whole"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["bundle"]


def test_force_replaces_bundles_and_empty_folders_alone(tmp_path: Path) -> None:
    empty, other, file = tmp_path / "empty", tmp_path / "other", tmp_path / "file"
    empty.mkdir()
    other.mkdir()
    (other / "mine").touch()
    file.touch()
    for place in (other, file):
        with pytest.raises(BundleError, match="exists") as refusal:
            new_bundle(place).__enter__()
        assert refusal.value.hint == "choose another -o folder"
        with pytest.raises(BundleError, match="is no bundle; --force replaces only") as refusal:
            new_bundle(place, force=True).__enter__()
        assert refusal.value.hint == "choose another -o folder, or remove this one yourself"
    with pytest.raises(BundleError, match="exists") as refusal:
        new_bundle(empty).__enter__()
    assert refusal.value.hint == "choose another -o folder, or pass --force"
    with new_bundle(empty, force=True) as folder:
        (folder / "part").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        *("empty", "file", "mine", "other", "part"),
    ]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is waited for, and what is renamed, in order, by name."""
    events: list[str] = []
    wait, rename = os.fsync, Path.replace

    def record_wait(descriptor: int) -> None:
        events.append(f"disk has {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        wait(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        events.append(f"rename to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_wait)
    monkeypatch.setattr(Path, "replace", record_rename)
    return events


@pytest.mark.needs("/proc/self/fd")
def test_the_disk_has_all_of_a_bundle_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = synced(monkeypatch)
    with new_bundle(tmp_path / "bundle") as folder:
        (folder / "tokenizer").mkdir()
        (folder / "linked").mkdir()
        for name in ("a", "tokenizer/b", "linked/c"):
            (folder / name).write_text("whole", encoding="utf-8")
    at = events.index("rename to bundle")
    assert {"disk has a", "disk has b", "disk has tokenizer"} <= set(events[:at])
    assert "disk has c" not in events  # a file of the checkpoint
    assert events[at + 1 :] == [f"disk has {tmp_path.name}"]


@pytest.mark.needs("/proc/self/fd")
def test_the_disk_has_a_file_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = synced(monkeypatch)
    write_atomically(tmp_path / "file", b"content")
    first, *rest = events
    assert first.startswith("disk has .file.")
    assert rest == ["rename to file", f"disk has {tmp_path.name}"]


def old_bundle(path: Path) -> None:
    path.mkdir()
    (path / MANIFEST).write_text("old", encoding="utf-8")


def test_a_bundle_is_replaced_and_nothing_of_it_stays(tmp_path: Path) -> None:
    old_bundle(tmp_path / "bundle")
    with new_bundle(tmp_path / "bundle", force=True) as folder:
        (folder / "part").write_text("new", encoding="utf-8")
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["part"]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def write_meanwhile(place: Path, name: str, *, force: bool) -> None:
    with new_bundle(place, force=force):
        place.mkdir()
        (place / name).write_text("another's", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "force", "told", "hint"),
    [
        (MANIFEST, False, "exists", "choose another -o folder, or pass --force"),
        ("mine", False, "exists", "choose another -o folder"),
        ("mine", True, "exists and is no bundle", "remove this one yourself"),
    ],
)
def test_what_came_to_the_place_meanwhile_is_not_replaced(
    name: str, force: bool, told: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=told) as refusal:
        write_meanwhile(tmp_path / "bundle", name, force=force)
    assert refusal.value.hint.endswith(hint)
    assert refusal.value.exit_code == 1
    assert (tmp_path / "bundle" / name).read_text(encoding="utf-8") == "another's"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_bundle(tmp_path / "bundle")
    rename = Path.replace

    def refuse_new(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise OSError("cannot rename")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", refuse_new)
    with pytest.raises(OSError, match="cannot rename"), new_bundle(tmp_path / "bundle", force=True):
        pass
    assert (tmp_path / "bundle" / MANIFEST).read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """A process that may write files of 4 KB alone, as a disk that is nearly full."""
    code = """
import pathlib, resource, sys
from draftrt.bundle import new_bundle
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with new_bundle(sys.argv[1]) as folder:
    (folder / "weights").write_bytes(bytes(100_000))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a" / "bundle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"BundleError: {tmp_path / 'a' / 'bundle'}: cannot be written: File too large" in (
        done.stderr
    )
    assert "Hint: make room, or write elsewhere" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="name is no UTF-8"):
        Bundle.open(tmp_path / "caf\udce9")
