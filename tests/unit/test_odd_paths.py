"""Odd paths for every option and argument of every command: one sentence, no traceback, no hang."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from draftrt.codec import check_file, folder_problem, path_problem, read_object
from draftrt.errors import BundleError
from draftrt.files import sample_tensors
from draftrt.runtime.prompts import read_prompts, read_whole
from tests.unit.test_odd_arguments import COMMANDS, faults, line, of_kind

pytest.importorskip("onnxruntime")
KINDS = ("folder", "empty", "pipe", "socket", "dangling", "loop", "zero", "binary")
EVERY = 3
MOST_SECONDS = 30  # only a call that waits for ever takes that long


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a call that waits for a writer."""

    def stop(number: int, frame: object) -> None:
        raise BaseException(f"nothing came for {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(path: Path, kind: str) -> Path:
    """Make something odd at a path."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made, ShortName(path) as place:
            made.bind(place)
    elif kind in ("dangling", "loop", "zero"):
        links = {"dangling": "nowhere", "loop": path.name, "zero": "/dev/zero"}
        path.symlink_to(links[kind])
    else:
        path.write_bytes(b"\xff\xfe\x00\x01" * 64 if kind == "binary" else b"")
    return path


class ShortName:
    """A name short enough for a socket: that in its own folder."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, Path.cwd()

    def __enter__(self) -> str:
        os.chdir(self._path.parent)
        return self._path.name

    def __exit__(self, *ended: object) -> None:
        os.chdir(self._before)


def odd_paths(folder: Path) -> list[str]:
    """Return paths of which none is what any command wants."""
    made = [str(put(folder / kind, kind)) for kind in KINDS]
    below = [str(folder / "empty" / "below"), str(folder / "loop" / "below")]
    name = os.fsdecode(os.fsencode(folder) + b"/caf\xe9/there")
    return [*made, *below, "n" * 300, "d/" * 2500, "a\0b", "", name, "/proc/self/mem"]


def test_odd_paths_are_told_for_every_option(tmp_path: Path) -> None:
    places = of_kind(click.Path)
    assert len(places) > 50
    assert all(type(one.type) is not click.Path for c in COMMANDS.values() for one in c.params)
    odd = odd_paths(tmp_path)
    wrong = [  # in turn, so that every kind meets several commands
        faults(line(words, name, path, tmp_path / "others"))
        for number, (words, name) in enumerate(places)
        for path in odd[number % EVERY :: EVERY]
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("which", ["draft", "target"])
@pytest.mark.parametrize("command", ["inspect", "export"])
def test_odd_files_in_a_checkpoint_are_told(
    assets: Path, tmp_path: Path, which: str, command: str
) -> None:
    given = {"draft": assets / "tiny-dspark", "target": assets / "tiny-target"}
    names = [path.name for path in given[which].iterdir()]
    mine = tmp_path / which
    shutil.copytree(given[which], mine)
    wrong = []
    for name in names:
        content = (mine / name).read_bytes()
        for kind in KINDS:
            if command == "export" and kind == "empty" and name == "chat_template.jinja":
                continue  # a template that writes nothing is one
            put(mine / name, kind)
            given[which] = mine
            words = [command, str(given["draft"]), "--target", str(given["target"])]
            # inspect reads the facts alone, and warns where a tokenizer would stop an export
            is_export = command == "export"
            out = ["-o", str(tmp_path / "out")] if is_export else []
            expected = (1, 2) if is_export else (0, 1, 2)
            wrong.append(faults([*words, *out], expected))
            put(mine / name, "empty").write_bytes(content)
    shown = [one for one in wrong if one and not (command == "inspect" and ": 0, " in one)]
    assert not shown, "\n".join(shown)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_no_reader_opens_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path / f"{kind}.safetensors", kind)
    if kind not in ("empty", "binary"):
        with pytest.raises(BundleError, match=rf"{kind}\.safetensors: "):
            check_file(path, BundleError)
    with pytest.raises(BundleError, match=rf"{kind}\.safetensors: "):
        read_object(path, BundleError)
    with pytest.raises(Exception, match=rf"{kind}\.safetensors: ") as told:
        read_prompts(path)
    assert type(told.value).__name__ == "FeedError"
    assert sample_tensors(tmp_path) == {}
    if kind != "folder":
        assert f"{kind}.safetensors: " in folder_problem(path)


def test_prompts_come_through_a_pipe_that_is_open(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"A song of 3 bags:\n")
        os.close(writing)
        assert [one.text for one in read_whole(f"/dev/fd/{reading}")] == ["A song of 3 bags:"]
    finally:
        os.close(reading)


def test_a_path_that_can_be_is_no_problem(tmp_path: Path) -> None:
    assert path_problem(tmp_path) == path_problem(tmp_path / "new") == ""
    assert folder_problem(tmp_path) == ""
    assert "NUL byte" in path_problem("a\0b")
    assert "File name too long" in path_problem("n" * 300)
