"""JSON files as people have them: what is read, and one sentence for what is not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from draftrt.codec import read_object, token_ids
from draftrt.errors import BundleError, CheckpointError


@pytest.mark.parametrize(
    "content",
    [b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}', b'\r\n {"a": 1}\r\n', b'{"a": 1, "b": [0.0, Infinity]}'],
    ids=["plain", "byte order mark", "line ends", "infinity"],
)
def test_an_object_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert read_object(tmp_path / "config.json", CheckpointError)["a"] == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        ('{"a": 1}'.encode("utf-16"), "it is UTF-16, expected UTF-8"),
        (b'{"a": "caf\xe9"}', "byte 10 is not UTF-8"),
        (b'{"a": 1', "Expecting ',' delimiter"),
        (b'{"a": 1, "a": 2}', r"a key stands twice in one object: \['a'\]"),
        (b'{"b": {"a": 1, "a": 1}}', "a key stands twice"),
        (b"[1]", r"got \[1\], expected a JSON object"),
        (b"null", "got None, expected a JSON object"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested deeper than 32 levels"),
        (b'{"a":' + b"[" * 200_000, "nested deeper than 32 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x00" * 64, "cannot be read as JSON"),
    ],
)
def test_what_is_no_object_is_told_in_one_sentence(
    content: bytes, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=says) as caught:
        read_object(path, BundleError)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("../blobs/none")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def nothing(path: Path) -> None:
    pass


def a_hole(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 33)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "got a folder, expected a file"),
        (a_pipe, "got a pipe, expected a file"),
        (a_socket, "got a socket, expected a file"),
        (a_link_to_nothing, "is a link to ../blobs/none, which is not there"),
        (a_link_to_itself, "Too many levels of symbolic links"),
        (a_hole, "has 8590 MB, expected at most 268 MB"),
        (nothing, "missing"),
    ],
)
def test_what_is_no_readable_file_is_told_and_never_waited_for(
    make: Callable[[Path], None], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=says):
        read_object(tmp_path / "config.json", CheckpointError)


def test_a_link_into_a_cache_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "f00d").write_text('{"a": 1}')
    (tmp_path / "snapshots").mkdir()
    path = tmp_path / "snapshots" / "config.json"
    path.symlink_to("../blobs/f00d")
    assert read_object(path, CheckpointError) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "ids"), [(None, ()), (0, (0,)), ([], ()), ([1, 106], (1, 106)), (512, (512,))]
)
def test_ids_are_one_or_several_or_none(value: object, ids: tuple[int, ...]) -> None:
    assert token_ids(value, "eos_token_id") == ids


@pytest.mark.parametrize("value", ["2", ["2"], -1, [1, -1], True, [None], 2.0, {"a": 1}, [[1]]])
def test_other_ids_are_told(value: object) -> None:
    with pytest.raises(ValueError, match=r"eos_token_id: got .* expected a token id or a list"):
        token_ids(value, "eos_token_id")
