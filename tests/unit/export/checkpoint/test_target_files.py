"""Tokenizer, template and stop ids of targets as people have them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.checkpoint.target_files import (
    TOKENIZER_FILES,
    check_target_files,
    copy_target_files,
)

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def folder(target_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(target_folder, tmp_path / "target"))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def add_tokens(folder: Path, first: int, count: int) -> None:
    tokens = [{"id": first + n, "content": f"<extra{n}>", "special": True} for n in range(count)]
    edit(folder / "tokenizer.json", lambda data: data["added_tokens"].extend(tokens))


@pytest.mark.parametrize(("beyond", "count"), [(0, 1), (7, 1), (0, 6), (0, 256)])
def test_added_tokens_without_a_row_are_told(
    beyond: int, count: int, folder: Path, target: TargetCheckpoint
) -> None:
    size = target.spec.vocab_size
    add_tokens(folder, size + beyond, count)
    findings, warnings = check_target_files(folder, target.spec)
    assert findings == []
    assert (
        f"tokens outside the target's vocabulary of {size}: '<extra0>' ({size + beyond})"
        in (warnings[0])
    )


def test_an_added_token_that_the_vocabulary_lists_too_is_an_added_one(
    folder: Path, target: TargetCheckpoint
) -> None:
    size = target.spec.vocab_size
    add_tokens(folder, size, 1)
    edit(
        folder / "tokenizer.json",
        lambda data: data["model"].update(vocab={"a": 0, "<extra0>": size}),
    )
    assert check_target_files(folder, target.spec)[0] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda data, size: data["model"].update(vocab={"a": 0, "b": size}),
        lambda data, size: data["model"].update(vocab={"a": -1}),
        lambda data, size: data["model"].update(vocab={str(n): n for n in range(10 * size)}),
        lambda data, size: data["added_tokens"].extend(
            {"id": size + n, "content": f"<{n}>"} for n in range(257)
        ),
        lambda data, size: data.update(model={"vocab": {}}, added_tokens=[]),
    ],
    ids=["an ordinary token", "a negative id", "ten times as many", "many added ones", "none"],
)
def test_the_tokenizer_of_another_model_is_refused(
    change: Callable[[dict[str, Any], int], Any], folder: Path, target: TargetCheckpoint
) -> None:
    edit(folder / "tokenizer.json", lambda data: change(data, target.spec.vocab_size))
    (finding,) = check_target_files(folder, target.spec)[0]
    assert f"expected 0 to {target.spec.vocab_size - 1}" in finding.message
    assert finding.hint == "the tokenizer belongs to another model"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read as JSON"),
        ("", "it is empty"),
        ("[]", "got [], expected a JSON object"),
        ('{"eos_token_id": "2"}', "eos_token_id: got '2', expected a token id"),
        ('{"eos_token_id": [1, "2"]}', "expected a token id or a list"),
        ('{"eos_token_id": -1}', "eos_token_id: got -1"),
        ('{"eos_token_id": NaN}', "eos_token_id: got nan"),
        ('{"eos_token_id": {"a": 1}}', "expected a token id or a list"),
        ('{"eos_token_id": 1, "eos_token_id": 2}', "a key stands twice"),
    ],
)
def test_a_broken_generation_config_is_told_before_any_work(
    content: str, says: str, folder: Path, target: TargetCheckpoint
) -> None:
    (folder / "generation_config.json").write_text(content)
    (finding,) = check_target_files(folder, target.spec)[0]
    assert says in finding.message
    assert "generation_config.json" in finding.message


@pytest.mark.parametrize("eos", ["null", "[]", "1", "[1, 106]", "99999"])
def test_a_generation_config_may_state_one_id_several_or_none(
    eos: str, folder: Path, target: TargetCheckpoint
) -> None:
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {eos}}}')
    assert check_target_files(folder, target.spec)[0] == []


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_no_file_of_a_target_is_waited_for_or_passed_over(
    name: str, folder: Path, target: TargetCheckpoint
) -> None:
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("../blobs/none")):
        path = folder / name
        path.unlink(missing_ok=True)
        make(path)
        (finding,) = check_target_files(folder, target.spec)[0]
        assert str(path) in finding.message
        if path.is_dir():
            path.rmdir()


def test_byte_order_marks_are_read_over_and_left_out_of_the_copy(
    folder: Path, target: TargetCheckpoint, tmp_path: Path
) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text("{}")
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for name in names:
        (folder / name).write_bytes(BOM + (folder / name).read_bytes())
    assert check_target_files(folder, target.spec) == ([], [])
    copy_target_files(folder, tmp_path / "copy")
    for name in names:
        content = (tmp_path / "copy" / name).read_bytes()
        assert content == (folder / name).read_bytes()[3:]
