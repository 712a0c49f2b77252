"""A target's facts and its two tables, from configs and headers of many shapes."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from draftrt.errors import CheckpointError, DraftrtError, SpecError
from draftrt.export.checkpoint.target import EMBED, HEAD, TargetCheckpoint, read_target
from draftrt.export.checkpoint.target_files import check_target_files
from tests.unit.export.fuzz import as_text
from tests.unit.export.published_files import Shapes, write_headers
from tests.unit.export.test_fuzz import mutate

PLAIN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 6,
    "hidden_size": 40,
    "vocab_size": 264,
    "tie_word_embeddings": False,
    "eos_token_id": [256, 258],
}
TABLE = (264, 40)


def write(folder: Path, config: dict[str, Any], **tensors: tuple[int, ...]) -> Path:
    shapes: Shapes = {name.replace("__", "."): shape for name, shape in tensors.items()}
    return write_headers(folder / "target", config, shapes)


def test_a_plain_target(tmp_path: Path) -> None:
    folder = write(tmp_path, PLAIN, model__embed_tokens__weight=TABLE, lm_head__weight=TABLE)
    target = read_target(folder)
    assert (target.spec.num_layers, target.spec.hidden_size, target.spec.vocab_size) == (6, 40, 264)
    assert target.spec.eos_token_ids == (256, 258)
    assert not target.spec.tie_word_embeddings
    assert target.tables[EMBED].name == "model.embed_tokens.weight"
    assert target.tables[HEAD].name == "lm_head.weight"


@pytest.mark.parametrize(
    ("embed", "head"),
    [
        ("model__language_model__embed_tokens__weight", "lm_head__weight"),
        ("language_model__model__embed_tokens__weight", "language_model__lm_head__weight"),
        ("backbone__embeddings__weight", "lm_head__weight"),
        ("transformer__wte__weight", "lm_head__weight"),
    ],
)
def test_a_text_model_inside_another(embed: str, head: str, tmp_path: Path) -> None:
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    inner = {key: value for key, value in PLAIN.items() if key != "architectures"}
    config = {**outer, "text_config": inner, "vision_config": {"hidden_size": 99}}
    tensors = {embed: TABLE, head: TABLE, "visual__patch_embed__weight": (8, 8)}
    target = read_target(write(tmp_path, config, **tensors))
    assert target.spec.model_type == "qwen3"
    assert target.spec.sources["hidden_size"] == "text_config.hidden_size"
    assert set(target.tables) == {EMBED, HEAD}


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    config = {**PLAIN, "tie_word_embeddings": True}
    target = read_target(write(tmp_path, config, model__embed_tokens__weight=TABLE))
    assert target.tables[HEAD] == target.tables[EMBED]


def test_a_fault_of_a_tied_table_is_told_once(tmp_path: Path) -> None:
    config = {**PLAIN, "tie_word_embeddings": True}
    folder = write(tmp_path, config, model__embed_tokens__weight=(264, 40, 1))
    with pytest.raises(CheckpointError, match="expected a 16- or 32-bit float table") as caught:
        read_target(folder)
    assert "problems found" not in caught.value.message


def test_padded_rows_are_no_vocabulary(tmp_path: Path) -> None:
    config = {**PLAIN, "unpadded_vocab_size": 250}
    tensors = {"model__embed_tokens__weight": TABLE, "lm_head__weight": TABLE}
    target = read_target(write(tmp_path, config, **tensors))
    assert (target.spec.vocab_size, target.spec.table_rows) == (250, 264)


@pytest.mark.parametrize(
    ("config", "tensors", "error", "says"),
    [
        ({}, {"model__embed_tokens__weight": TABLE}, CheckpointError, "no LM head found"),
        ({}, {"lm_head__weight": TABLE}, CheckpointError, "no embedding table found"),
        (
            {},
            {"model__embed_tokens__weight": (200, 40), "lm_head__weight": TABLE},
            SpecError,
            "has 200 rows, expected at least 264",
        ),
        (
            {},
            {"model__embed_tokens__weight": (264,), "lm_head__weight": TABLE},
            CheckpointError,
            "a quantised embedding or head cannot be shared",
        ),
        (
            {"architectures": []},
            {"model__embed_tokens__weight": TABLE, "lm_head__weight": TABLE},
            SpecError,
            "architectures is missing",
        ),
        (
            {"num_hidden_layers": None, "vocab_size": "many"},
            {"model__embed_tokens__weight": TABLE, "lm_head__weight": TABLE},
            SpecError,
            "2 problems found",
        ),
    ],
    ids=["no head", "no embedding", "short table", "no table", "no architecture", "two problems"],
)
def test_a_target_that_cannot_serve_is_refused(
    config: dict[str, Any],
    tensors: dict[str, tuple[int, ...]],
    error: type[DraftrtError],
    says: str,
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, {**PLAIN, **config}, **tensors)
    with pytest.raises(error, match=says):
        read_target(folder)


def test_a_damaged_target_config_never_ends_in_a_traceback(tmp_path: Path) -> None:
    config = {**PLAIN, "rope_parameters": {"rope_theta": 1e4}, "text_config": dict(PLAIN)}
    tensors = {"model__embed_tokens__weight": TABLE, "lm_head__weight": TABLE}
    folder = write(tmp_path, config, **tensors)
    outcomes = set()
    for seed in range(150):
        rng, changed = random.Random(seed), copy.deepcopy(config)
        for _ in range(rng.choice((1, 2, 4))):
            mutate(changed, rng)
        (folder / "config.json").write_text(as_text(changed))
        try:
            read_target(folder)
            outcomes.add("read")
        except DraftrtError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_damaged_tokenizer_is_a_finding(
    target: TargetCheckpoint, target_folder: Path, tmp_path: Path
) -> None:
    """A finding and no traceback, whatever the three files hold."""
    folder = tmp_path / "target"
    shutil.copytree(target_folder, folder)
    assert check_target_files(folder, target.spec) == ([], [])
    original = json.loads((folder / "tokenizer.json").read_text())
    original["model"]["vocab"] = {"a": 0, "b": 1}
    for seed in range(150):
        rng, changed = random.Random(seed), copy.deepcopy(original)
        for _ in range(rng.choice((1, 2, 4))):
            mutate(changed, rng)
        (folder / "tokenizer.json").write_text(as_text(changed))
        findings, _ = check_target_files(folder, target.spec)
        assert all(str(finding) for finding in findings)
    for text in ("", "[]", "{" * 3, "[" * 100_000, '{"chat_template": 3}', "\x00"):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(target_folder / "tokenizer.json", folder / "tokenizer.json")
            (folder / name).write_text(text)
            findings, _ = check_target_files(folder, target.spec)
            assert findings or text == '{"chat_template": 3}', (name, text[:20])
