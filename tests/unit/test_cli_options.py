"""Where a command is asked to write is looked at before the work begins."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.cli_options import OutputFile, check_places, check_replaced, write_output
from draftrt.errors import DraftrtError
from tests.size import published, run

TRAJECTORIES = [
    *["validate", "record-trajectories", "no-drafter", "--target", "no-target"],
    *["--prompts", "p"],
]
# Nothing but the place is wrong for certain: a command that starts to work fails otherwise, with 1.
WORDS = {
    "bench --json": ["bench", "no-bundle", "--json"],
    "bench --svg": ["bench", "no-bundle", "--svg"],
    "report": ["report", "no-bundle", "-o"],
    "report --markdown": ["report", "no-bundle", "-o", "r.html", "--markdown"],
    "report --json": ["report", "no-bundle", "-o", "r.html", "--json"],
    "record-trajectories": [*TRAJECTORIES, "-o"],
}


@pytest.mark.parametrize("name", WORDS)
def test_a_place_that_cannot_be_written_is_wrong_usage(name: str, tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "file"
    done = CliRunner().invoke(group, [*WORDS[name], str(absent)])
    assert done.exit_code == 2, done.output
    assert f"{absent}: no such folder: {absent.parent}" in done.stderr
    done = CliRunner().invoke(group, [*WORDS[name], str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert f"{tmp_path}: got a folder, expected the name of a file" in done.stderr
    done = CliRunner().invoke(group, [*WORDS[name], str(tmp_path / "file")])
    assert done.exit_code == 1, done.output
    assert list(tmp_path.iterdir()) == []
    done = CliRunner().invoke(group, [*WORDS[name], "/dev/null"])
    assert done.exit_code == 2, done.output
    assert "/dev/null: got a device or pipe, expected the name of a file" in done.stderr
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "b", "--json", "x", "--svg", "./x"], "x: got one file for --json and --svg"),
        (["bench", "b", "--json", "b/manifest.json"], "lies in the bundle, which holds its own"),
        (["bench", "b", "--svg", "b/new"], "lies in the bundle"),
        (["bench", "b", "--prompts", "p", "--json", "p"], "got a file that the command reads"),
        (["bench", "b", "--target", "c", "--json", "c/config.json"], "reads for --json"),
        (["report", "b", "-o", "x", "--json", "x"], "x: got one file for --out and --json"),
        (["report", "b", "-o", "x", "--markdown", "link"], "for --out and --markdown"),
        (["report", "b", "-o", "x", "--bench", "p", "--json", "p"], "the command reads for --json"),
        ([*TRAJECTORIES, "-o", "p"], "p: got a file that the command reads for --out"),
        (
            ["export", "c", "--target", "t", "-o", "c", "--force"],
            "--out c: got a folder that holds",
        ),
        (["export", "b/d", "--target", "c", "-o", "b", "--force"], "holds b/d, which is read"),
        (["export", "--target", "b/d", "-o", "b", "--force"], "holds b/d, which is read"),
        (["engine", "c", "--target", "b/d", "-o", "b"], "holds b/d, which is read"),
    ],
)
def test_nothing_that_is_read_or_written_otherwise_is_overwritten(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("b/d", "c", "t"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("b/manifest.json", "p", "c/config.json"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "link").symlink_to("x")
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "b" / "manifest.json").read_text() == "{}"


def test_a_file_beside_what_is_read_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    outputs = {"--json": tmp_path / "c" / "new.json", "--svg": tmp_path / "b.svg"}
    check_places(outputs, inputs=(tmp_path / "c", None), bundle=tmp_path / "b")
    check_replaced(tmp_path / "c" / "out", inputs=(tmp_path / "c", None))


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    place = OutputFile().convert(link, None, None)
    write_output(place, "text")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    with pytest.raises(DraftrtError, match=r"absent/file: cannot be written: No such file"):
        write_output(tmp_path / "absent" / "file", "text")


FOLDERS = {
    "export": ["export", "no-drafter", "--target", "no-target", "-o"],
    "engine": ["engine", "no-drafter", "--target", "no-target", "-o"],
    "record": ["validate", "record", "no-drafter", "--target", "no-target", "-o"],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_cannot_be_made_is_wrong_usage(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, said in (
        ("", "got an empty path"),
        (tmp_path / "file" / "a" / "b", f"lies below a file: {tmp_path / 'file'}"),
    ):
        done = CliRunner().invoke(group, [*FOLDERS[name], str(place)])
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.stderr.split())
    done = CliRunner().invoke(group, [*FOLDERS[name], str(tmp_path / "a" / "b")])
    assert done.exit_code == 1, done.output
    assert "no such folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", [published.main, run.main])
def test_the_folders_of_the_size_commands_are_looked_at_too(
    command: click.Command, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    names = ["smollm2-135m-dflash"] if command is published.main else []
    done = CliRunner().invoke(command, [*names, "--out", str(tmp_path / "file" / "a")])
    assert done.exit_code == 2, done.output
    assert f"lies below a file: {tmp_path / 'file'}" in " ".join(done.stderr.split())


def test_no_system_to_write_is_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(published.main, ["--out", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "Missing argument" in done.stderr
