"""An LFM2 target's graph against transformers: any split of a text, and rows taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.load import open_graph
from draftrt.signature import COMMIT_ROWS
from draftrt.spec import Profile
from tests.toys.tokenizer import NUM_TOKENS, write_tokenizer

pytestmark = pytest.mark.parity
TEXT = np.random.default_rng(5).integers(0, NUM_TOKENS, 90).astype(np.int64)


def make_model(folder: Path, *, bias: bool) -> Any:
    """Write a random LFM2 whose first layer with attention is not its first one."""
    import transformers

    made: Any = transformers  # as it is typed, it knows neither block_ff_dim nor eval
    config = made.Lfm2Config(
        vocab_size=NUM_TOKENS + 21,
        hidden_size=48,
        block_ff_dim=100,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        norm_eps=0.03,
        conv_bias=bias,
        conv_L_cache=4,
        block_multiple_of=24,
        layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    torch.manual_seed(3)
    model = made.Lfm2ForCausalLM(config).eval()
    for key, weight in model.named_parameters():
        noise = torch.randn(weight.shape)
        weight.data = 1 + 0.3 * noise if "norm" in key else 0.15 * noise
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def answers(model: Any, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None], use_cache=False).logits
    found: NDArray[np.float32] = logits[0].numpy()
    return found


@pytest.mark.parametrize(
    ("bias", "profile"), [(False, Profile.FIXED), (True, Profile.COMPAT)], ids=["fixed", "compat"]
)
def test_a_graph_with_short_convolutions_commits_what_it_is_told(
    bias: bool, profile: Profile, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "target", bias=bias)
    options = ExportOptions(max_context=128, profile=profile)
    export_bundle(None, tmp_path / "target", tmp_path / "bundle", options)
    session = open_graph(Bundle.open(tmp_path / "bundle"), "target")

    def call(ids: NDArray[np.int64], length: int, commit: int) -> NDArray[np.float32]:
        feeds = {
            "input_ids": ids[None],
            "context_length": np.array([length]),
            "logit_rows": np.arange(min(len(ids), 16)),
            COMMIT_ROWS: np.array([commit]),
        }
        logits: NDArray[np.float32] = session.run(feeds, rows=length + len(ids))["logits"][0]
        return logits

    rng, want = np.random.default_rng(1), answers(model, TEXT)
    for _ in range(8):  # each begins a text behind whatever the one before left
        length = last = before = 0
        while length + last < len(TEXT):
            length += last
            last = int(rng.integers(1, min(len(TEXT) - length, 50) + 1))
            got = call(TEXT[length : length + last], length, 0 if length == 0 else before)
            np.testing.assert_allclose(got, want[length : length + len(got)], atol=1e-4, rtol=0)
            before = last
    committed, rows, accepted = np.empty(0, np.int64), TEXT[:40], 40
    call(rows, 0, 0)
    for _ in range(30):  # none, some or all rows stand, also behind a round of one
        committed = np.concatenate((committed, rows[:accepted]))
        rows = rng.integers(0, NUM_TOKENS, int(rng.choice([1, 2, 3, 8]))).astype(np.int64)
        got = call(rows, len(committed), accepted)
        want = answers(model, np.concatenate((committed, rows)))[len(committed) :]
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)
        accepted = int(rng.integers(0, len(rows) + 1)) if len(committed) < 110 else 0
