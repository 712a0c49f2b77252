"""An LFM2 target's config to its facts: most layers convolve over the last few rows.

Read from transformers' ``configuration_lfm2``: what a config does not state has that file's
default.
"""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.export.config.layers import FULL
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.config.targets.shared import (
    CARRIED_ROWS,
    check_model_type,
    check_some_attend,
    check_types,
    read_sizes,
)
from draftrt.spec import ShortConvSpec

ARCHITECTURES = ("Lfm2ForCausalLM",)
MODEL_TYPE = "lfm2"
CONV = "conv"
THETA = 1e6
_SAYS_NOTHING = """
model_type vocab_size unpadded_vocab_size eos_token_id tie_embedding tie_word_embeddings
full_attn_idxs block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init
"""
_SAME = {  # another name of a size, which transformers does not read: key to the size's own key
    "block_dim": "hidden_size",
    "conv_dim": "hidden_size",
    "conv_dim_out": "hidden_size",
    "num_heads": "num_attention_heads",
    "block_norm_eps": "norm_eps",
}
_ON = ("block_use_swiglu", "use_pos_enc")


def read_lfm2(facts: Facts, body: str, tensor_prefix: str) -> dict[str, Any]:
    """Resolve the layers of an LFM2 text model.

    Args:
        facts: the config.
        body: prefix of the text model's keys, with its dot, or empty.
        tensor_prefix: what the checkpoint puts before ``embed_tokens``.

    Returns:
        Fields of `DecoderSpec`; findings stay in ``facts``.
    """
    sizes = read_sizes(facts, body)
    layers, share = sizes["num_layers"], sizes["hidden_size"] // sizes["num_heads"]
    dim = facts.number(
        "head_dim", [f"{body}head_dim"], low=2, high=1 << 14, default=share, why="H / N"
    )
    _check_fixed(facts, body)
    for name in ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "windows", "activation"):
        facts.say(name, "architectures")
    eps = facts.real("rms_norm_eps", [f"{body}norm_eps"], default=1e-5, why="default 1e-5")
    return {
        **sizes,
        "head_dim": dim,
        "intermediate_size": _mlp_width(facts, body),
        "rms_norm_eps": eps,
        "activation": "silu",
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": True,
        "windows": (None,) * layers,
        "rope": read_rope(facts, body, dim, [FULL], default_theta=THETA),
        "short_conv": _conv(facts, body, layers, tensor_prefix),
    }


def _check_fixed(facts: Facts, body: str) -> None:
    """Refuse what the published layers do not do, and two names that say different sizes."""
    check_model_type(facts, f"{body}model_type", MODEL_TYPE)
    for key in _SAYS_NOTHING.split():
        facts.raw(f"{body}{key}")
    for key, own in _SAME.items():
        value, stated = facts.raw(f"{body}{key}"), facts.raw(f"{body}{own}")
        if value is not None and stated is not None and value != stated:
            facts.error(f"{body}{key}: got {shown(value)}, expected {shown(stated)} as {own}")
    for key in _ON:
        if facts.raw(f"{body}{key}") not in (None, True):
            facts.error(f"{body}{key}: got false, expected true", unsupported=True)


def _mlp_width(facts: Facts, body: str) -> int:
    """Return the width of the MLPs: as stated, or two thirds of it rounded up to a multiple."""
    stated = [f"{body}block_ff_dim", f"{body}intermediate_size"]
    width = facts.number("intermediate_size", stated, low=1, high=1 << 24)
    source = facts.sources.get("intermediate_size", stated[0])
    adjusts = facts.flag(
        "intermediate_size", [f"{body}block_auto_adjust_ff_dim"], default=True, why="default true"
    )
    factor = facts.real(
        "intermediate_size", [f"{body}block_ffn_dim_multiplier"], default=1.0, why="default 1"
    )
    multiple = facts.number(
        "intermediate_size", [f"{body}block_multiple_of"], low=1, default=256, why="default 256"
    )
    facts.raw(stated[1])
    facts.say("intermediate_size", f"{source}, adjusted" if adjusts else source)
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple if adjusts else width


def _types(facts: Facts, body: str, num_layers: int) -> tuple[str, ...]:
    path, indices = f"{body}layer_types", facts.raw(f"{body}full_attn_idxs")
    types = facts.raw(path)
    if types is None and isinstance(indices, list):
        types = [FULL if index in indices else CONV for index in range(num_layers)]
    found = check_types(
        facts,
        path,
        types,
        (FULL, CONV),
        num_layers,
        "it or full_attn_idxs says which layers attend; nothing is inferred",
    )
    check_some_attend(facts, path, found)
    return found


def _conv(facts: Facts, body: str, num_layers: int, tensor_prefix: str) -> ShortConvSpec:
    types = _types(facts, body, num_layers)
    taps = facts.number(
        "short_conv", [f"{body}conv_L_cache"], low=2, high=1 << 10, default=3, why="default 3"
    )
    bias = facts.flag("short_conv", [f"{body}conv_bias"], default=False, why="default false")
    facts.say("short_conv", f"architectures, {body}layer_types, {body}conv_L_cache")
    return ShortConvSpec(
        layers=tuple(index for index, kind in enumerate(types) if kind == CONV),
        kernel_size=taps,
        has_bias=bias,
        carried_rows=CARRIED_ROWS,
        tensor_prefix=tensor_prefix,
    )
