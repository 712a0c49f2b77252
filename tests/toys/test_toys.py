"""Toy checkpoints are read by the real readers, in every format and with every knob."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftrt.errors import CheckpointError
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint, read_target
from draftrt.export.checkpoint.target_files import check_target_files
from draftrt.spec import Backbone, Family, TableSource, VocabMap
from tests.toys.models import REMOVED, Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

FAMILY = {
    Kind.ZLAB_DFLASH: Family.DFLASH,
    Kind.ZLAB_DFLASH2: Family.DFLASH2,
    Kind.DEEPSPEC_DFLASH: Family.DSPARK,  # DeepSpec's own architecture, its heads switched off
    Kind.DEEPSPEC_DSPARK: Family.DSPARK,
    Kind.DEEPSPEC_GEMMA4: Family.DSPARK,
    Kind.SPECULATORS_DFLASH: Family.DFLASH,
    Kind.SPECULATORS_DFLASH2: Family.DFLASH2,
    Kind.SPECULATORS_DSPARK: Family.DSPARK,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    return read_target(write_target(tmp_path_factory.mktemp("toys") / "target"))


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_read_as_what_it_is(
    kind: Kind, target: TargetCheckpoint, tmp_path: Path
) -> None:
    spec = load_drafter(write_drafter(tmp_path, ToyDrafter(kind=kind)), target).spec
    assert spec.family is FAMILY[kind]
    assert (spec.backbone is Backbone.GEMMA4) is (kind is Kind.DEEPSPEC_GEMMA4)
    assert spec.checkpoint_format == kind.value.split("-")[0].replace("zlab", "z-lab")
    assert spec.target_layer_ids == (1, 3, 4)
    assert spec.block_size == 4
    is_dspark = kind.value.endswith(("dspark", "gemma4"))
    assert (spec.markov is not None) is (spec.confidence is not None) is is_dspark
    assert not spec.warnings


def test_the_knobs_reach_the_drafter(target: TargetCheckpoint, tmp_path: Path) -> None:
    toy = ToyDrafter(
        kind=Kind.SPECULATORS_DSPARK,
        num_layers=3,
        head_dim=24,
        block_size=6,
        draft_vocab_size=96,
        sliding_window=7,
        attention_bias=True,
        markov_type="rnn",
        with_confidence=False,
        sample_from_anchor=False,
        rope={"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        dtype="bfloat16",
        num_shards=3,
    )
    spec = load_drafter(write_drafter(tmp_path, toy), target).spec
    assert [rule.window for rule in spec.layers] == [7, None, 7]
    assert (spec.head_dim, spec.block_size, spec.num_draft_tokens) == (24, 6, 5)
    assert (spec.draft_vocab_size, spec.vocab_map) == (96, VocabMap.OFFSET)
    assert (spec.embed_source, spec.head_source) == (TableSource.TARGET, TableSource.DRAFT)
    assert spec.attention_bias
    assert spec.markov is not None
    assert (spec.markov.type, spec.confidence) == ("rnn", None)
    assert (spec.rope.type, spec.rope.theta, spec.rope.factor) == ("linear", 5e5, 2.0)
    assert spec.dtype == "bfloat16"
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_overrides_set_and_remove_keys_and_tensors_come_and_go(
    target: TargetCheckpoint, tmp_path: Path
) -> None:
    toy = ToyDrafter(
        kind=Kind.ZLAB_DFLASH,
        overrides={"dflash_config.mask_token_id": 3, "num_target_layers": REMOVED},
        omit=("norm.weight",),
        extra={"stranger": np.ones(3, np.float32)},
    )
    config = json.loads((write_drafter(tmp_path, toy) / "config.json").read_text())
    assert config["dflash_config"]["mask_token_id"] == 3
    assert "num_target_layers" not in config
    with pytest.raises(CheckpointError, match=r"norm\.weight(.|\n)*stranger"):
        load_drafter(tmp_path, target)


def test_the_same_description_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def content(name: str, seed: int) -> bytes:
        toy = ToyDrafter(kind=Kind.ZLAB_DFLASH2, seed=seed)
        return (write_drafter(tmp_path / name, toy) / "model.safetensors").read_bytes()

    assert content("a", 5) == content("b", 5) != content("c", 6)


def test_no_norm_weight_is_all_ones(target: TargetCheckpoint, tmp_path: Path) -> None:
    loaded = load_drafter(write_drafter(tmp_path, ToyDrafter(kind=Kind.ZLAB_DFLASH)), target)
    norms = [ref.read() for name, ref in loaded.tensors.items() if name.endswith("norm.weight")]
    assert len(norms) == 2 * 4 + 2
    assert all(norm.std() > 0.1 for norm in norms)


def test_the_target_loads_in_transformers_and_its_tokenizer_returns_every_text(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_target(tmp_path, ToyTarget(tie_word_embeddings=True))
    assert check_target_files(folder, read_target(folder).spec) == ([], [])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("naïve\ttext", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == "naïve\ttext"
    assert model(ids).logits.shape == (1, ids.shape[1], 264)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "<|im_start|>user\nhi<|im_end|>\n"


def test_a_target_needs_room_for_its_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 260, got 259"):
        write_target(tmp_path, ToyTarget(vocab_size=259))
