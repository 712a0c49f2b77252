"""Gemma-4 targets: every way to write the config, tapped layers, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftrt.errors import DraftrtError
from draftrt.export.check.target import check_target_sampled
from draftrt.export.checkpoint.decoder import read_decoder
from draftrt.export.checkpoint.target import read_target
from draftrt.export.models.decoder import Decoder
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.export.weights.tensors import target_tensors
from draftrt.spec import DecoderSpec, Precision
from tests.toys.tokenizer import NUM_TOKENS, write_tokenizer

transformers = pytest.importorskip("transformers")

SLIDING, FULL = "sliding_attention", "full_attention"
CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    config = transformers.Gemma4UnifiedTextConfig(
        vocab_size=NUM_TOKENS + 5,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
        sliding_window=12,
        max_position_embeddings=512,
        final_logit_softcapping=8.0,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
    )
    torch.manual_seed(1)
    made = transformers.Gemma4UnifiedForCausalLM(config).eval()
    for name, buffer in made.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.8)
    for weight in made.parameters():
        weight.data = weight.data + 0.1 * torch.randn(weight.shape)
    folder = tmp_path_factory.mktemp("gemma4")
    made.save_pretrained(folder)
    return made, folder


def rewrite(source: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy a checkpoint with its config changed."""
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    return folder


def published(config: dict[str, Any]) -> None:
    """Say heads of full layers as the published configs do."""
    del config["per_layer_config"]
    config["global_head_dim"], config["num_global_key_value_heads"] = 32, 2


def facts_of(spec: DecoderSpec) -> dict[str, Any]:
    return {
        name: getattr(spec, name) for name in DecoderSpec.__dataclass_fields__ if name != "sources"
    }


def test_taps_are_the_states_behind_whole_layers(model: tuple[Any, Path]) -> None:
    theirs, folder = model
    spec, taps = read_decoder(read_target(folder)), (-1, 0, 1, 3)
    tensors = target_tensors(spec, folder, Precision.FP32, CONTEXT)
    contents = {name: tensor.source.read() for name, tensor in tensors.items()}
    ours = Decoder(spec, contents, taps=taps).eval()
    seen: dict[int, torch.Tensor] = {}
    layers = theirs.model.layers
    hooks = [
        layer.register_forward_hook(lambda m, i, out, k=k: seen.update({k: out.clone()}))
        for k, layer in enumerate(layers)
    ]
    hooks.append(
        theirs.model.embed_tokens.register_forward_hook(lambda m, i, out: seen.update({-1: out}))
    )
    ids = torch.randint(0, NUM_TOKENS, (1, 30))
    caches = [
        torch.zeros(1, groups, CONTEXT, dim)
        for groups, dim in map(spec.cache_shape, range(spec.num_layers))
        for _ in range(2)
    ]
    with torch.no_grad():
        logits = theirs(ids, use_cache=False).logits
        found = ours(ids, torch.tensor([0]), torch.arange(30), *caches)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found[1], logits, atol=1e-4, rtol=1e-4)
    expected = torch.cat([seen[tap] for tap in taps], dim=-1)
    torch.testing.assert_close(found[2], expected, atol=1e-4, rtol=1e-4)


def test_both_spellings_of_the_full_layers_heads_say_the_same(
    model: tuple[Any, Path], tmp_path: Path
) -> None:
    _, folder = model
    other = rewrite(folder, tmp_path / "published", published)
    wanted = facts_of(read_decoder(read_target(folder)))
    assert facts_of(read_decoder(read_target(other))) == wanted
    assert wanted["gemma4"].full_head_dim == 32
    assert wanted["windows"] == (12, None, 12, None)


def test_the_text_model_inside_a_multimodal_checkpoint_is_read(
    model: tuple[Any, Path], tmp_path: Path
) -> None:
    _, folder = model
    text = json.loads((folder / "config.json").read_text())
    published(text)
    config = {
        "architectures": ["Gemma4UnifiedForConditionalGeneration"],
        "model_type": "gemma4_unified",
        "text_config": text,
        "vision_config": {"hidden_size": 7},
        "image_token_id": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    moved = {name.replace("model.", "model.language_model.", 1): w for name, w in weights.items()}
    save_file({**moved, "model.vision_tower.patch.weight": torch.ones(2, 2)},
              tmp_path / "model.safetensors")  # fmt: skip
    spec, plain = read_decoder(read_target(tmp_path)), read_decoder(read_target(folder))
    assert spec.gemma4 is not None
    assert spec.gemma4.tensor_prefix == "model.language_model."
    found, wanted = (
        target_tensors(one, place, Precision.FP32, CONTEXT)
        for one, place in ((spec, tmp_path), (plain, folder))
    )
    assert set(found) == set(wanted)
    for name, tensor in found.items():
        assert torch.equal(tensor.source.read(), wanted[name].source.read()), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size_per_layer_input": 8}, r"hidden_size_per_layer_input: got 8, expected 0"),
        ({"model_type": "gemma4_text"}, r"hidden_size_per_layer_input: got 256, expected 0"),
        ({"num_kv_shared_layers": 2}, r"num_kv_shared_layers: got 2, expected 0"),
        ({"enable_moe_block": True}, r"enable_moe_block: got True, expected 0"),
        ({"use_double_wide_mlp": True}, r"use_double_wide_mlp: got True, expected 0"),
        ({"use_bidirectional_attention": "all"}, r"use_bidirectional_attention: got 'all'"),
        ({"layer_types": [SLIDING, FULL]}, r"layer_types: got .*, expected 4 of"),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, r"per_layer_config.0: got \['head_dim'\]"),
        (
            {"per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 64}}},
            r"stated with different values: per_layer_config.1.head_dim = 32",
        ),
        ({"attn_logit_softcapping": 50.0}, r"that by their names .* attn_logit"),
        (
            {"quantization_config": {"bits": 4}},
            "quant_method missing is not read",
        ),
    ],
)
def test_what_these_layers_do_not_have_is_refused_by_name(
    model: tuple[Any, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = rewrite(model[1], tmp_path / "changed", lambda config: config.update(change))
    with pytest.raises(DraftrtError, match=message):
        read_decoder(read_target(folder))


def test_single_layers_of_the_written_graph_are_the_modules(
    model: tuple[Any, Path], tmp_path: Path
) -> None:
    """The comparison that large targets get: a sliding layer and a full one by themselves."""
    _, folder = model
    write_tokenizer(folder)
    out = export_bundle(None, folder, tmp_path / "bundle", ExportOptions(max_context=CONTEXT))
    spec = read_decoder(read_target(folder))
    tensors = target_tensors(spec, folder, Precision.FP32, CONTEXT)
    lines = check_target_sampled(out / "target.onnx", spec, tensors, (), Precision.FP32, CONTEXT)
    kinds = {spec.windows[int(line.split()[1])] for line in lines if line.startswith("layer ")}
    assert kinds == {12, None}
