"""A draft vocabulary padded to the table's physical rows never yields an id the target lacks.

Rows and logical size are those of Inkling-Small-DSpark; the padded rows are made the likeliest by
far, so that one row let through would show in the first round. ROUNDS=10000 runs the long form.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from draftrt.bundle import Bundle
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.load import open_graph
from tests.toys.tokenizer import write_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.slow]

PADDED, LOGICAL, HIDDEN, INNER, RANK, MASK = 201_024, 200_058, 8, 16, 2, 200_064
ROUNDS = int(os.environ.get("ROUNDS", "200"))


def write_pair(folder: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(11)

    def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32)

    layer = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_norm.weight": (8,),
        "self_attn.k_norm.weight": (8,),
        "self_attn.q_proj.weight": (16, HIDDEN),
        "self_attn.k_proj.weight": (8, HIDDEN),
        "self_attn.v_proj.weight": (8, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, 16),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    tensors = {f"layers.0.{name}": normal(*shape) for name, shape in layer.items()}
    tensors |= {"fc.weight": normal(HIDDEN, 2 * HIDDEN), "hidden_norm.weight": normal(HIDDEN)}
    tensors |= {"norm.weight": normal(HIDDEN)}
    output = normal(PADDED, RANK)
    output[LOGICAL:] *= 1000  # the likeliest by far, whichever way the embedding points
    tensors |= {"markov_head.markov_w1.weight": normal(PADDED, RANK)}
    tensors |= {"markov_head.markov_w2.weight": output}
    table = normal(PADDED, HIDDEN)
    table[LOGICAL:] *= 1000
    config = {
        "architectures": ["DSparkDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": PADDED,
        "draft_vocab_size": PADDED,
        "rope_theta": 8e6,
        "num_target_layers": 4,
        "target_layer_ids": [0, 2],
        "mask_token_id": MASK,
        "block_size": 7,
        "markov_rank": RANK,
        "dtype": "float32",
    }
    target = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "hidden_size": HIDDEN,
        "vocab_size": LOGICAL,
        "tie_word_embeddings": True,
    }
    files = (
        ("draft", config, tensors),
        ("target", target, {"model.embed_tokens.weight": table}),
    )
    for name, facts, content in files:
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(facts), encoding="utf-8")
        save_file(content, folder / name / "model.safetensors")
    write_tokenizer(folder / "target")
    return folder / "draft", folder / "target"


def test_padded_rows_are_never_drafted(tmp_path: Path) -> None:
    draft, target = write_pair(tmp_path)
    options = ExportOptions(max_context=64, target_graph=False)
    bundle = Bundle.open(export_bundle(draft, target, tmp_path / "bundle", options))
    spec = bundle.drafter()
    assert (spec.num_padded_rows, spec.is_reduced) == (PADDED - LOGICAL, False)
    drafter = DraftSession(spec, open_graph(bundle))
    rng = np.random.default_rng(0)
    seen: set[int] = set()
    for _ in range(ROUNDS):
        drafter.crop(0)
        features = rng.standard_normal((1, 3, spec.feature_size)).astype(np.float32)
        ids = drafter.draft(int(rng.integers(0, LOGICAL)), features)["draft_ids"]
        seen.update(ids[0].tolist())
    drafter.close()
    assert min(seen) >= 0
    assert max(seen) < LOGICAL
    assert len(seen) > 20, "the drafts vary"
