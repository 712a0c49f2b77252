"""A Muse-Glimmer target's config to the facts of its text model.

Read from transformers' ``configuration_muse_glimmer``: what a config does not state has that file's
default.
"""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.export.config.keys import ACTIVATIONS
from draftrt.export.config.layers import FULL, SLIDING
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.config.targets.shared import (
    check_model_type,
    check_types,
    read_attention_bias,
    read_mlp_width,
    read_sizes,
)
from draftrt.spec import MuseSpec

ARCHITECTURES = ("MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration")
MODEL_TYPE = "muse_glimmer_text"
PATTERN = 4  # one layer in so many, counted from the last, is full and without positions
_SAYS_NOTHING = ("vocab_size", "unpadded_vocab_size", "eos_token_id", "tie_word_embeddings")


def read_muse_glimmer(facts: Facts, body: str, tensor_prefix: str) -> dict[str, Any]:
    """Resolve the layers of a Muse-Glimmer text model.

    Args:
        facts: the config.
        body: prefix of the text model's keys, with its dot, or empty.
        tensor_prefix: what the checkpoint puts before ``embed_tokens``.

    Returns:
        Fields of `DecoderSpec`; findings stay in ``facts``.
    """
    check_model_type(facts, f"{body}model_type", MODEL_TYPE)
    for key in _SAYS_NOTHING:
        facts.raw(f"{body}{key}")
    sizes = read_sizes(facts, body)
    dim = facts.number("head_dim", [f"{body}head_dim"], low=2, high=1 << 14, default=128, why="128")
    for name in ("mlp_bias", "qk_norm"):
        facts.say(name, "architectures")
    types = _types(facts, body, sizes["num_layers"])
    window = None
    if SLIDING in types:
        window = facts.number("windows", [f"{body}sliding_window"], low=1)
    facts.raw(f"{body}sliding_window")
    facts.say("windows", f"{body}layer_types")
    rope = read_rope(facts, body, dim, list(dict.fromkeys(types)))
    return {
        **sizes,
        **read_attention_bias(facts, body),
        "head_dim": dim,
        "intermediate_size": read_mlp_width(facts, body),
        "rms_norm_eps": facts.real(
            "rms_norm_eps", [f"{body}rms_norm_eps"], default=1e-5, why="default 1e-5"
        ),
        "activation": facts.text(
            "activation",
            [f"{body}hidden_activation"],
            choices=ACTIVATIONS,
            default="silu",
            why="default silu",
        ),
        "mlp_bias": False,
        "qk_norm": False,
        "windows": tuple(window if kind == SLIDING else None for kind in types),
        "rope": rope,
        "muse": _muse(facts, body, types, rope.theta, tensor_prefix),
    }


def _is_whole(index: int, num_layers: int) -> bool:
    """Whether a config that does not list its layers means a full one without positions here."""
    return (num_layers - 1 - index) % PATTERN == 0


def _types(facts: Facts, body: str, num_layers: int) -> tuple[str, ...]:
    path = f"{body}layer_types"
    types = facts.raw(path)
    if types is None:
        types = [FULL if _is_whole(i, num_layers) else SLIDING for i in range(num_layers)]
    return check_types(facts, path, types, (FULL, SLIDING), num_layers)


def _muse(
    facts: Facts, body: str, types: tuple[str, ...], theta: float, tensor_prefix: str
) -> MuseSpec:
    turned = _turned(facts, body, types, theta)
    numbers = {
        name: facts.real("muse", [f"{body}{key}"], default=default, why=f"default {default}")
        for name, key, default in (
            ("post_norm_eps", "post_norm_eps", 1e-8),
            ("query_scale", "qk_scale_factor", 3.87),
            ("output_multiplier", "output_multiplier", 0.19611613513818404),
            ("final_logit_softcapping", "final_logit_softcapping", 20.0),
        )
    }
    facts.say("muse", f"architectures, {body}layer_rope_theta, {body}output_multiplier")
    return MuseSpec(
        sliding_has_rope=turned.get(SLIDING, True),
        full_has_rope=turned.get(FULL, True),
        tensor_prefix=tensor_prefix,
        **numbers,
    )


def _turned(facts: Facts, body: str, types: tuple[str, ...], theta: float) -> dict[str, bool]:
    """Return for each type whether its layers turn queries and keys; theta 0 says that none do."""
    path, num_layers = f"{body}layer_rope_theta", len(types)
    thetas = facts.raw(path)
    if thetas is None:
        thetas = [0 if _is_whole(i, num_layers) else theta for i in range(num_layers)]
    is_listed = isinstance(thetas, list) and len(thetas) == num_layers
    if not is_listed or any(one not in (0, theta) or isinstance(one, bool) for one in thetas):
        facts.error(
            f"{path}: got {shown(thetas)}, expected {num_layers} of 0 and {theta:g}",
            "transformers turns by the one theta of rope_parameters, and 0 means no positions",
        )
        return {}
    found = {
        kind: {bool(one) for one, other in zip(thetas, types, strict=True) if other == kind}
        for kind in dict.fromkeys(types)
    }
    for kind, turns in found.items():
        if len(turns) > 1:
            facts.error(
                f"{path}: got {shown(thetas)}, expected the same for every {kind} layer",
                "layers of one type with and without positions are not known to these layers",
                unsupported=True,
            )
    return {kind: True in turns for kind, turns in found.items()}
