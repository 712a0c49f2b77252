"""Rotary frequencies and angles against transformers' own, and against formulas in plain loops."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from draftrt.export.config.keys import ROPE_TYPES
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.models import ops, rope
from draftrt.export.models.weights import register
from draftrt.spec import Profile, RopeSpec
from tests.parity.slow_rope import SlowRope

DIM = 16
SHORT = [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0]
LONG = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0]
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({"rope_type": "default", "rope_theta": 1e6}, 64),
    "default, theta of Muse": ({"rope_type": "default", "rope_theta": 5e5}, 64),
    "linear": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, 64),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.5}, 24),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 32,
        },
        512,
    ),
    "yarn, factor against the lengths": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 3.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "truncate": False,
        },
        512,
    ),
    "yarn, mscale": (
        {
            "rope_type": "yarn",
            "rope_theta": 5e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        },
        512,
    ),
    "yarn, attention factor": (
        {
            "rope_type": "yarn",
            "rope_theta": 5e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 0.75,
        },
        512,
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 48,
        },
        512,
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 24,
        },
        96,
    ),
    "longrope, stated factor": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 9.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 24,
        },
        96,
    ),
    "proportional": (
        {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        64,
    ),
    "proportional, scaled": (
        {
            "rope_type": "proportional",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "factor": 2.0,
        },
        64,
    ),
}
HALF_ROTARY = {"linear", "dynamic", "yarn", "llama3"}


def spec_of(parameters: dict[str, Any], max_position: int) -> RopeSpec:
    config = {"rope_parameters": parameters, "max_position_embeddings": max_position}
    facts = Facts(config, Path("config.json"))
    spec = read_rope(facts, "", DIM, ("full_attention",))
    facts.done()
    return spec


def transformers_config(parameters: dict[str, Any], max_position: int) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=max_position,
        rope_parameters=dict(parameters),
    )


def test_every_supported_type_is_compared() -> None:
    assert {parameters["rope_type"] for parameters, _ in CASES.values()} == set(ROPE_TYPES)


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    parameters, max_position = CASES[name]
    spec = spec_of(parameters, max_position)
    slow = SlowRope(parameters=parameters, head_dim=DIM, max_position=max_position)
    for long in (False, True):
        length = max_position + 1 if long else 8
        if spec.type != "dynamic":
            got, factor = rope.inverse_frequencies(spec, long=long)
            loops = [slow.frequency(i, length) for i in range(len(got))]
            np.testing.assert_allclose(got, loops, rtol=2e-6)
            assert factor == pytest.approx(slow.magnitude())
        if spec.type in ("default", "dynamic"):
            continue  # transformers keeps the first in each model; the second changes by round
        config = transformers_config(parameters, max_position)
        want, scaling = ROPE_INIT_FUNCTIONS[spec.type](config, torch.device("cpu"), seq_len=length)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
        assert factor == pytest.approx(scaling)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("prop")])
def test_angles_over_rounds_are_those_of_transformers(name: str) -> None:
    """Contexts grow past the declared length, so dynamic and longrope change between rounds."""
    parameters, max_position = CASES[name]
    spec = spec_of(parameters, max_position)
    module = Qwen3RotaryEmbedding(transformers_config(parameters, max_position))
    slow = SlowRope(parameters=parameters, head_dim=DIM, max_position=max_position)
    tables = rope.table_tensors(spec, 256)
    weights = register(
        torch.nn.Module(), {name: torch.from_numpy(table) for name, table in tables.items()}
    )
    start = 0
    for new, block in ((6, 8), (1, 8), (9, 8), (2, 8), (90, 8), (1, 8)):
        positions = torch.arange(start, start + new + block)
        length = torch.tensor([start + new + block])
        cos, sin = rope.rows(spec, weights, positions, length)
        want_cos, want_sin = module(torch.zeros(1), positions[None])
        half = cos.shape[-1]
        np.testing.assert_allclose(cos, want_cos[..., :half], atol=2e-5)
        np.testing.assert_allclose(sin, want_sin[..., :half], atol=2e-5)
        for row in (0, new, new + block - 1):
            for i in range(half):
                angle = int(positions[row]) * slow.frequency(i, int(length))
                assert float(cos[0, row, i]) == pytest.approx(
                    slow.magnitude() * np.cos(angle), abs=5e-5
                )
        start += new


@pytest.mark.parametrize("interleaved", [False, True], ids=["neox", "interleaved"])
@pytest.mark.parametrize("name", [*sorted(HALF_ROTARY), "default"])
def test_a_partial_rotation_leaves_the_rest_of_a_head(name: str, interleaved: bool) -> None:
    parameters, max_position = CASES[name]
    parameters = {**parameters, "partial_rotary_factor": 0.5}
    spec = spec_of(parameters, max_position)
    assert spec.rotary_dim == DIM // 2
    tables = rope.table_tensors(spec, 64)
    weights = register(
        torch.nn.Module(), {name: torch.from_numpy(table) for name, table in tables.items()}
    )
    cos, sin = rope.rows(spec, weights, torch.arange(40), torch.tensor([40]))
    x = torch.randn(1, 2, 40, DIM)
    got = ops.rotate(x, cos, sin, interleaved=interleaved, profile=Profile.FIXED).numpy()
    slow = SlowRope(
        parameters=parameters,
        head_dim=DIM,
        max_position=max_position,
        interleaved=interleaved,
    )
    for head in range(2):
        for row in (0, 1, 23, 39):
            want = slow.rotate(x[0, head, row].double().numpy(), row, 40)
            np.testing.assert_allclose(got[0, head, row], want, atol=5e-5)
    assert np.array_equal(got[..., DIM // 2 :], x[..., DIM // 2 :].numpy())


@pytest.mark.parametrize("layer", ["qwen3", "gemma4"])
def test_drafters_turn_the_whole_head_as_their_published_layers_do(layer: str) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    facts = Facts({"rope_parameters": parameters}, Path("config.json"))
    spec = read_rope(facts, "", DIM, ("full_attention",), rotates_whole=True)
    facts.done()
    assert facts.warnings == [
        "partial_rotary_factor 0.25 has no effect: these layers turn the whole head"
    ]
    config = transformers_config(parameters, 64)
    if layer == "qwen3":
        frequencies, _ = Qwen3RotaryEmbedding.compute_default_rope_parameters(config)
    else:
        nested = SimpleNamespace(head_dim=DIM, rope_parameters={"full_attention": parameters})
        frequencies, _ = Gemma4TextRotaryEmbedding.compute_default_rope_parameters(
            nested,  # type: ignore[arg-type]
            layer_type="full_attention",
        )
    np.testing.assert_allclose(rope.inverse_frequencies(spec)[0], frequencies, rtol=1e-6)
