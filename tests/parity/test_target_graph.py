"""Exported targets against transformers: logits and greedy text, architecture by architecture.

transformers is the oracle: the models below are its own classes with random weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.export.checkpoint.gemma4 import WRAPPER
from draftrt.export.models.signature import MAX_ROWS
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.export.weights.quantize import dequantize, quantize_rows
from draftrt.onnx_session import AS_WRITTEN, QUANTISED_PRODUCTS
from draftrt.quantization import parse_quantization, part_of
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import open_graph
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.signature import cache_specs
from tests.toys.tokenizer import NUM_TOKENS, write_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.slow]

BASE = {
    "vocab_size": NUM_TOKENS + 21,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 0.03,  # large, so that every norm's shows in the logits
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3": {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": PLAIN_ROPE},
    "Qwen2": {
        "tie_word_embeddings": False,
        "rope_parameters": PLAIN_ROPE,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "Llama": {
        "head_dim": 16,  # heads side by side are wider than the residual stream
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "Mistral": {
        "head_dim": 16,
        "tie_word_embeddings": False,
        "rope_parameters": PLAIN_ROPE,
        "sliding_window": 12,
    },
}
GEMMA4 = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 2,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 8.0,
}
MODELS |= {
    "Gemma4Unified": {**GEMMA4, "attention_k_eq_v": True},
    "Gemma4": {**GEMMA4, "attention_bias": True, "hidden_size_per_layer_input": 0},
}
MODELS |= {
    "MuseGlimmer": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "layer_rope_theta": [10000.0, 0, 10000.0, 0],
        "rope_parameters": PLAIN_ROPE,
        "final_logit_softcapping": 8.0,
        "output_multiplier": 0.5,
        "post_norm_eps": 0.2,
    },
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "max_position_embeddings": 16,
    "rope_parameters": dict(PLAIN_ROPE),  # the config's own class writes into it
}
PROMPT = np.random.default_rng(5).integers(0, NUM_TOKENS, 45).astype(np.int64)


def make_model(name: str, folder: Path) -> Any:
    import transformers

    keys, form = {**BASE, **MODELS[name]}, "ForCausalLM"
    kind = f"{name}TextConfig" if name.startswith("Gemma4") else f"{name}Config"
    if name == "MuseGlimmer":
        sizes = {"out_hidden_size": 64, "projector_hidden_size": 24}
        keys, form = {"text_config": keys, "vision_config": VISION, **sizes}, WRAPPER
    config = getattr(transformers, kind)(**keys)
    torch.manual_seed(3)
    model = getattr(transformers, name + form)(config).eval()
    for key, scalar in model.named_buffers():
        if key.endswith("layer_scalar"):
            scalar.fill_(0.7)
    for key, weight in model.named_parameters():
        noise = torch.randn(weight.shape)
        weight.data = 1 + 0.3 * noise if key.endswith("norm.weight") else 0.15 * noise
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def greedy(model: Any, count: int) -> list[int]:
    """Decode without a cache: one full forward a token."""
    ids: list[int] = PROMPT.tolist()
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extended] if name in ("Qwen2", "Gemma4") else [])
        for name in MODELS
    ],
)
def test_an_exported_target_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    model = make_model(name, tmp_path / "target")
    export_bundle(None, tmp_path / "target", tmp_path / "bundle", ExportOptions())
    bundle = Bundle.open(tmp_path / "bundle")
    session = open_graph(bundle, "target")
    target = GraphTarget(session, bundle.graph("target").max_context)
    assert target.feature_size == 0
    prompt = target.prefill(PROMPT[:30], want_logits=True)
    assert prompt.logits is not None
    rows = target.verify(PROMPT[30:], want_logits=True)
    assert rows.logits is not None
    with torch.no_grad():
        expected = model(torch.from_numpy(PROMPT)[None], use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(prompt.logits, expected[29:30], atol=1e-4, rtol=0)
    np.testing.assert_allclose(rows.logits, expected[30:], atol=1e-4, rtol=0)
    assert rows.token_ids.tolist() == expected[30:].argmax(-1).tolist()
    target.rollback(33)
    again = target.verify(PROMPT[33:36], want_logits=True)
    assert again.logits is not None
    np.testing.assert_allclose(again.logits, expected[33:36], atol=1e-4, rtol=0)
    for asked in ([44], [*range(45)], [31, 2, 17], [5, 44, 5, 0, 5]):
        feeds = {
            "input_ids": PROMPT[None],
            "context_length": np.zeros(1, np.int64),
            "logit_rows": np.array(asked),
        }
        out = session.run(feeds, rows=45)
        np.testing.assert_allclose(out["logits"][0], expected[asked], atol=1e-4, rtol=0)
        assert out["next_ids"].tolist() == [expected[asked].argmax(-1).tolist()]
    target.rollback(0)
    options = DecodeOptions(max_tokens=256, stop_ids=frozenset())
    decoded = [
        t for one in DecodeLoop(target).decode(PROMPT.tolist(), options) for t in one.token_ids
    ]
    assert decoded == greedy(model, 256)  # passes the first size of the caches, 256 rows
    longest = np.resize(PROMPT, MAX_ROWS)  # as many rows as a call may have
    target.rollback(0)
    whole = target.prefill(longest, want_logits=True)
    with torch.no_grad():
        last = model(torch.from_numpy(longest)[None], use_cache=False).logits[0, -1:].numpy()
    assert whole.logits is not None
    np.testing.assert_allclose(whole.logits, last, atol=1e-4, rtol=0)
    target.close()


@pytest.mark.extended
@pytest.mark.parametrize("linear", ["int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_target_is_transformers_with_the_same_integers(
    name: str, linear: str, tmp_path: Path
) -> None:
    model = make_model(name, tmp_path / "target")
    parts = parse_quantization([f"linear={linear}", "head=int8", "embedding=int8"])
    options = ExportOptions(max_context=64, quantization=parts)
    export_bundle(None, tmp_path / "target", tmp_path / "bundle", options)
    num_quantised = 0
    for key, weight in model.named_parameters():
        key = key.replace("model.language_model.", "model.")
        part = part_of(key, is_product=True)
        if part is not None:
            codes = quantize_rows(key, weight.data, parts["target"][part], torch.float32)
            weight.data = dequantize(*codes)
            num_quantised += 1
    assert num_quantised >= 3 * 6 + 1
    bundle = Bundle.open(tmp_path / "bundle")
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry(QUANTISED_PRODUCTS, AS_WRITTEN)
    session = onnxruntime.InferenceSession(
        str(bundle.file("target.onnx")), settings, providers=["CPUExecutionProvider"]
    )
    feeds = {
        "input_ids": PROMPT[None],
        "context_length": np.zeros(1, np.int64),
        "logit_rows": np.arange(len(PROMPT)),
    }
    caches = cache_specs(bundle.graph("target").signature)
    feeds |= {
        tensor.name: np.zeros([int(size) for size in tensor.shape], np.float32) for tensor in caches
    }
    (logits,) = session.run(["logits"], feeds)
    with torch.no_grad():
        expected = model(torch.from_numpy(PROMPT)[None], use_cache=False).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


def test_a_target_alone_decodes_plainly_from_the_command_line(tmp_path: Path) -> None:
    make_model("Llama", tmp_path / "target")
    runner = CliRunner()
    out = tmp_path / "bundle"
    made = runner.invoke(group, ["export", "--target", str(tmp_path / "target"), "-o", str(out)])
    assert made.exit_code == 0, made.output
    assert sorted(Bundle.open(out).manifest.graphs) == ["target"]
    said = runner.invoke(group, ["run", str(out), "--prompt", "abc", "--max-tokens", "5"])
    assert said.exit_code == 0, said.output
    assert "target cache: " in said.stderr


def test_an_unsupported_target_is_refused_by_name_and_left_to_the_port(tmp_path: Path) -> None:
    import transformers

    folder = tmp_path / "target"
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=NUM_TOKENS + 8)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    write_tokenizer(folder)
    result = CliRunner().invoke(
        group, ["export", "--target", str(folder), "-o", str(tmp_path / "b")]
    )
    assert result.exit_code == 1
    assert not (tmp_path / "b").exists()
