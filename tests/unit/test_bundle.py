"""Making a bundle: what stays behind when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.bundle import new_bundle
from draftrt.errors import BundleError


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
