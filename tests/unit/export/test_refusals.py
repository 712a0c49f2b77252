"""Every refusal that needs no trace, by the command that users run: text, hint and exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import read_target
from tests.toys.models import Kind
from tests.unit.export.refusal_rows import BLOCK_ROWS, TARGET_ROWS, Refusal
from tests.unit.export.refusal_rows_heads import HEAD_ROWS, VOCABULARY_ROWS
from tests.unit.export.refusal_rows_layers import ATTENTION_ROWS, ROPE_ROWS
from tests.unit.export.refusal_rows_model import QUANTISED_ROWS, TENSOR_ROWS, UNSUPPORTED_ROWS

ROWS = [
    *TARGET_ROWS,
    *BLOCK_ROWS,
    *ROPE_ROWS,
    *ATTENTION_ROWS,
    *HEAD_ROWS,
    *VOCABULARY_ROWS,
    *TENSOR_ROWS,
    *UNSUPPORTED_ROWS,
    *QUANTISED_ROWS,
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_checkpoint_is_refused_by_name(
    row: Refusal,
    draft: Callable[..., Path],
    target_folder: Path,
    other_target: Callable[..., Path],
    inspect: Callable[..., Result],
) -> None:
    folder = draft(row.kind, overrides=row.config, **row.toy)
    against = other_target(**row.target) if row.target else target_folder
    result = inspect(folder, "--target", against, *row.options)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    missing = [text for text in row.says if text not in result.stderr]
    assert not missing, result.stderr
    stated = False if row.options else None
    with pytest.raises(row.error):
        load_drafter(folder, read_target(against), sample_from_anchor=stated)


def test_all_problems_of_a_checkpoint_are_told_at_once(
    draft: Callable[..., Path], other_target: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    folder = draft(
        Kind.ZLAB_DFLASH,
        overrides={"dflash_config.mask_token_id": 999, "surprise": 1, "dflash_config.causal": 3},
        omit=("hidden_norm.weight",),
        extra={"stray.weight": np.zeros(3, np.float32)},
    )
    result = inspect(folder, "--target", other_target(num_layers=3))
    assert result.exit_code == 1
    assert "7 problems found" in result.stderr
    for text in (
        "mask_token_id: got 999",
        "['surprise']",
        "dflash_config.causal: got 3",
        "got layers [3, 4]",
        "num_target_layers: got 6, expected 3",
        "tensors missing: hidden_norm.weight",
        "nothing asks for: stray.weight",
    ):
        assert text in result.stderr
    assert result.stderr.count("Hint:") >= 5


def test_a_broken_config_and_broken_weights_are_told_together(
    draft: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    folder = draft(Kind.ZLAB_DFLASH)
    (folder / "config.json").write_text("{")
    (folder / "model.safetensors").write_bytes(b"cut")
    result = inspect(folder)
    assert result.exit_code == 1
    assert "2 problems found" in result.stderr
    assert "not a safetensors file" in result.stderr
    assert "cannot be read as JSON" in result.stderr


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def pickled_mask(folder: Path) -> None:
    (folder / "mask_embedding.pt").write_bytes(b"\x80\x04.")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(text)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (pickled, ("only pickled weights found (pytorch_model.bin)", "never loaded", "convert")),
        (pickled_mask, ("mask_embedding.pt: pickled weights are never loaded", "safetensors")),
        (no_weights, ("no *.safetensors file found", "the folder that holds config.json")),
        (no_config, ("config.json: missing", "give a folder that holds config.json")),
        (pointer, ("not a safetensors file, or cut short", "Git LFS pointer")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_folder_without_readable_weights_is_refused(
    damage: Callable[[Path], None],
    says: tuple[str, ...],
    draft: Callable[..., Path],
    inspect: Callable[..., Result],
) -> None:
    folder = draft(Kind.DEEPSPEC_DSPARK)
    damage(folder)
    result = inspect(folder)
    assert result.exit_code == 1
    assert not [text for text in says if text not in result.stderr], result.stderr


def test_a_missing_shard_is_named(
    draft: Callable[..., Path], inspect: Callable[..., Result]
) -> None:
    folder = draft(Kind.ZLAB_DFLASH, num_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    result = inspect(folder)
    assert result.exit_code == 1
    assert "shards missing: ['model-00002-of-00003.safetensors']" in result.stderr
    assert "the download is incomplete" in result.stderr


def test_a_name_that_is_no_folder_and_not_to_be_had_is_refused(
    inspect: Callable[..., Result],
) -> None:
    result = inspect("z-lab/Qwen3-4B-DFlash-b16")
    assert result.exit_code == 1
    assert "z-lab/Qwen3-4B-DFlash-b16: no such folder here" in result.stderr
    assert "or give a folder" in result.stderr or "HF_ENDPOINT" in result.stderr


def test_code_that_a_checkpoint_brings_is_never_run(
    draft: Callable[..., Path], target_folder: Path, inspect: Callable[..., Result]
) -> None:
    folder = draft(
        Kind.ZLAB_DFLASH, overrides={"auto_map": {"AutoModel": "modeling_dflash.DFlashDraftModel"}}
    )
    trap = folder / "ran"
    for name in ("modeling_dflash.py", "conftest.py", "__init__.py", "sitecustomize.py"):
        (folder / name).write_text(f"open({str(trap)!r}, 'w')\nraise SystemExit('ran')\n")
    assert inspect(folder, "--target", target_folder).exit_code == 0
    assert not trap.exists()
