"""Hugging Face targets: features, cropping and greedy text against transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftrt.errors import BackendError, BusyError, SpecError, UnsupportedError
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.targets.huggingface import HfTarget, check_same_target, say_recomputed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LAYERS = (-1, 1, 3)
PROMPT = np.arange(5, 29)  # longer than the sliding window


def write_model(folder: Path, kind: str) -> Path:
    """A random model with visible differences between its layers."""
    torch.manual_seed(7)
    if kind == "sliding":
        config = transformers.Qwen2Config(
            **SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=2
        )
        model = transformers.Qwen2ForCausalLM(config)
    elif kind == "hybrid":
        interval: dict[str, Any] = {"full_attention_interval": 2}
        linear: dict[str, Any] = {"linear_conv_kernel_dim": 4}
        for part, heads, width in (("key", 2, 6), ("value", 4, 10)):
            linear |= {f"linear_num_{part}_heads": heads, f"linear_{part}_head_dim": width}
        config = transformers.Qwen3_5TextConfig(**SIZES, **interval, **linear)
        model = transformers.Qwen3_5ForCausalLM(config)
    elif kind == "conv":
        kinds = ["conv", "full_attention", "conv", "conv"]
        config = transformers.Lfm2Config(**SIZES, layer_types=kinds, conv_L_cache=3)
        model = transformers.Lfm2ForCausalLM(config)
    elif kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    return folder


HYBRIDS = ("hybrid", "conv")


@pytest.fixture(scope="module", params=["qwen3", "llama", "sliding", *HYBRIDS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param), request.param)


def oracle(folder: Path, ids: np.ndarray[Any, Any]) -> SimpleNamespace:
    """Logits, features and the raw output of the last layer, from one pass without a cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    raw: list[Any] = []
    norm = model.model.embedding_norm if "Lfm2" in type(model).__name__ else model.model.norm
    norm.register_forward_pre_hook(lambda module, args: raw.append(args[0]))
    with torch.inference_mode():
        out = model(
            input_ids=torch.from_numpy(ids)[None], use_cache=False, output_hidden_states=True
        )
    states = torch.cat([out.hidden_states[0], out.hidden_states[2], raw[0]], -1)
    return SimpleNamespace(
        logits=out.logits[0].numpy(), features=states.numpy(), normed=out.hidden_states[-1].numpy()
    )


def test_features_are_raw_layer_outputs_in_the_order_of_the_taps(folder: Path) -> None:
    expected = oracle(folder, PROMPT)
    target = HfTarget(folder, LAYERS)
    rows = target.prefill(PROMPT)
    assert target.feature_size == rows.features.shape[2] == 3 * 32
    np.testing.assert_allclose(rows.features, expected.features, rtol=1e-4, atol=1e-4)
    assert np.abs(rows.features[..., 64:] - expected.normed).max() > 0.1, "final-normed"
    swapped = HfTarget(folder, (3, 1, -1)).prefill(PROMPT).features
    np.testing.assert_array_equal(swapped[..., :32], rows.features[..., 64:])


def test_chunks_and_rolled_back_drafts_give_the_rows_of_one_pass(folder: Path) -> None:
    expected = oracle(folder, PROMPT)
    target = HfTarget(folder, LAYERS)
    rows = [target.prefill(PROMPT[:11], want_logits=True)]
    assert rows[0].token_ids.shape == (1,)
    for start, end in ((11, 12), (12, 20), (20, 24)):
        wrong = target.verify(np.array([60, 61, 62]), want_logits=True)
        assert wrong.logits is not None
        assert target.length == start + 3
        target.rollback(start)
        assert target.length == start
        rows.append(target.verify(PROMPT[start:end], want_logits=True))
    features = np.concatenate([row.features for row in rows], axis=1)
    np.testing.assert_allclose(features, expected.features, rtol=1e-4, atol=1e-4)
    logits = np.concatenate([row.logits for row in rows if row.logits is not None])
    np.testing.assert_allclose(logits, expected.logits[10:], rtol=1e-4, atol=1e-4)
    chosen = np.concatenate([row.token_ids for row in rows])
    assert chosen.tolist() == expected.logits[10:].argmax(-1).tolist()


def test_greedy_text_is_that_of_generate(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.from_numpy(PROMPT)[None]
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=None,
    )[0, len(PROMPT) :].tolist()
    rounds = DecodeLoop(HfTarget(folder)).decode(PROMPT.tolist(), DecodeOptions(max_tokens=40))
    assert [token for one in rounds for token in one.token_ids] == expected


def test_an_interrupted_call_can_be_rolled_back(folder: Path) -> None:
    target = HfTarget(folder, LAYERS)
    target.prefill(PROMPT[:12])

    def interrupt(module: Any, args: Any) -> None:
        raise KeyboardInterrupt

    hook = target._model.model.layers[2].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        target.verify(PROMPT[12:15])
    hook.remove()
    target.rollback(12)
    rows = target.verify(PROMPT[12:])
    np.testing.assert_allclose(
        rows.features, oracle(folder, PROMPT).features[:, 12:], rtol=1e-4, atol=1e-4
    )


def test_rolling_back_to_nothing_starts_a_new_text(folder: Path) -> None:
    target = HfTarget(folder, LAYERS)
    first = target.prefill(PROMPT)
    target.rollback(0)
    again = target.prefill(PROMPT)
    np.testing.assert_array_equal(first.features, again.features)
    assert HfTarget(folder).prefill(PROMPT).features.shape == (1, len(PROMPT), 0)


def test_layers_that_return_a_tuple_are_understood(folder: Path) -> None:
    target = HfTarget(folder, (1,))
    expected = target.prefill(PROMPT).features
    target.rollback(0)
    layer = target._model.model.layers[1]
    layer.register_forward_hook(lambda module, args, output: (output,), prepend=True)
    layer.register_forward_hook(lambda module, args, output: output[0])
    np.testing.assert_array_equal(target.prefill(PROMPT).features, expected)


def test_a_tap_beyond_the_depth_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"taps layers \[4, 33\], the target has layers 0..3"):
        HfTarget(folder, (1, 4, 33))


def test_a_closed_target_says_so(folder: Path) -> None:
    target = HfTarget(folder)
    target.close()
    target.close()
    with pytest.raises(BackendError, match="the target is closed"):
        target.prefill(PROMPT)


def write_config(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**SIZES, **changes}))
    return folder


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_model_with_a_state_is_recomputed_and_its_cost_is_told(kind: str, tmp_path: Path) -> None:
    target = HfTarget(write_model(tmp_path, kind))
    told = {"hybrid": "linear_attention", "conv": "conv"}[kind]
    assert target.recomputed == (told,)
    assert f"layers of type {told} keep a state" in say_recomputed(target)
    target.prefill(PROMPT)
    assert target._cache.get_seq_length() == 0, "a cache took part"


def test_a_cache_that_cannot_go_back_is_never_cropped_in_silence(tmp_path: Path) -> None:
    """Were a kind of layer taken for one that can go back, its cache would still be told."""
    target = HfTarget(write_model(tmp_path, "hybrid"))
    target.recomputed, target._new_cache = (
        (),
        lambda: transformers.DynamicCache(config=target._model.config),
    )
    with pytest.raises(UnsupportedError, match="LinearAttentionLayer of transformers cannot go"):
        target.rollback(0)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, r"config\.json: missing"),
        ("{", "cannot be read as JSON"),
        ("[]", r"got \[\], expected a JSON object"),
        ('{"hidden_size": "32"}', "hidden_size.*are missing or no whole"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(
    tmp_path: Path, content: str | None, cause: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(BackendError, match=cause):
        HfTarget(tmp_path)


def test_a_model_transformers_cannot_load_is_refused_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot load it"):
        HfTarget(write_config(tmp_path, model_type="qwen3"))


def test_a_file_in_the_place_of_a_targets_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="file: got a file, expected a folder"):
        HfTarget(tmp_path / "file")


def test_another_target_than_the_exported_one_is_refused_before_it_is_loaded(
    toy: SimpleNamespace, tmp_path: Path
) -> None:
    spec = toy.target_spec(hidden_size=32, vocab_size=60, table_rows=64)
    check_same_target(write_config(tmp_path), spec)
    check_same_target(write_config(tmp_path, vocab_size=60), spec)
    nested = {"text_config": SIZES}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    check_same_target(tmp_path, spec)
    with pytest.raises(SpecError) as refusal:
        check_same_target(write_config(tmp_path, num_hidden_layers=3, vocab_size=100), spec)
    assert "num_hidden_layers is 3, expected 4; vocab_size is 100, expected 64" in str(
        refusal.value
    )
    assert "draftrt export" in refusal.value.hint


@pytest.mark.parametrize("by_hand", [False, True], ids=["decoder", "by hand"])
def test_a_text_does_not_go_on_with_the_cache_of_a_longer_one(folder: Path, by_hand: bool) -> None:
    target = HfTarget(folder)
    rounds = DecodeLoop(target).decode(PROMPT[:4].tolist(), DecodeOptions(max_tokens=8))
    next(rounds)
    if by_hand:
        target.rollback(0)
        target.prefill(PROMPT)
    else:
        list(DecodeLoop(target).decode(PROMPT.tolist(), DecodeOptions(max_tokens=8)))
    with pytest.raises(BusyError, match="another decoder has used them"):
        next(rounds)


def test_a_closed_target_says_so_whatever_is_asked(folder: Path) -> None:
    target = HfTarget(folder)
    rounds = DecodeLoop(target).decode(PROMPT.tolist(), DecodeOptions(max_tokens=8))
    next(rounds)
    target.close()
    target.close()
    with pytest.raises(BackendError, match="the target is closed"):
        next(rounds)
    with pytest.raises(BackendError, match="the target is closed"):
        target.rollback(0)
    with pytest.raises(BackendError, match="the target is closed"):
        target.final_norm(np.zeros((1, 32), np.float32))
