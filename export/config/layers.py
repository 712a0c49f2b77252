"""Sizes, element type, arithmetic and masks of a drafter's layers, from its config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from draftrt.export.config.family import Kind
from draftrt.export.config.keys import ACTIVATIONS
from draftrt.export.config.reader import Facts
from draftrt.spec import Backbone, Family, LayerSpec, WindowEdge

MOST_SIZE, MOST_HEADS, MOST_LAYERS = 1 << 24, 1 << 14, 256
SCALE_PATHS = ("dflash_config.input_embedding_scale", "input_embedding_scale")


def read_dimensions(facts: Facts, kind: Kind, stored_dtype: str) -> dict[str, Any]:
    """Resolve what every layer is built with.

    Args:
        facts: the config.
        kind: family and format.
        stored_dtype: element type of the checkpoint's tensors, taken where none is stated.
    """
    body, gemma = kind.body, kind.backbone is Backbone.GEMMA4
    fields = _heads(facts, kind)
    fields["dtype"] = facts.text(
        "dtype",
        [f"{body}dtype", f"{body}torch_dtype", "dtype", "torch_dtype"],
        choices=("float32", "float16", "bfloat16"),
        default=stored_dtype,
        why="not stated; that of the tensors",
    )
    fields["attention_value_scale"] = _value_scale(facts, kind)
    fields |= {
        name: facts.number(name, [f"{body}{key}"], low=low, high=high)
        for name, key, low, high in (
            ("hidden_size", "hidden_size", 2, MOST_SIZE),
            ("intermediate_size", "intermediate_size", 1, MOST_SIZE),
            ("num_layers", "num_hidden_layers", 1, MOST_LAYERS),
        )
    }
    fields["rms_norm_eps"] = facts.real(
        "rms_norm_eps", [f"{body}rms_norm_eps"], default=1e-6, why="default 1e-6"
    )
    fields["activation"] = facts.text(
        "activation",
        [f"{body}hidden_activation" if gemma else f"{body}hidden_act"],
        choices=ACTIVATIONS,
        default="gelu_pytorch_tanh" if gemma else "silu",
        why=f"default of backbone {kind.backbone.value}",
    )
    fields["attention_bias"] = facts.flag(
        "attention_bias", [f"{body}attention_bias"], default=False, why="default false"
    )
    fields["embedding_scale"] = _embedding_scale(
        facts, kind, fields["hidden_size"], fields["dtype"]
    )
    return fields


def _heads(facts: Facts, kind: Kind) -> dict[str, Any]:
    """Number and size of the heads, and how their scores are scaled."""
    body, gemma = kind.body, kind.backbone is Backbone.GEMMA4
    key_is_value = gemma and facts.flag(
        "attention_k_eq_v", [f"{body}attention_k_eq_v"], default=False, why="default false"
    )
    if not gemma:
        facts.say("attention_k_eq_v", "default of backbone qwen3")
    heads = facts.number("num_heads", [f"{body}num_attention_heads"], low=1, high=MOST_HEADS)
    of_full = f"{body}num_global_key_value_heads"
    is_apart = key_is_value and facts.raw(of_full) is not None
    path = of_full if is_apart else f"{body}num_key_value_heads"
    groups = facts.number("num_kv_heads", [path], low=1, high=MOST_HEADS)
    if heads % groups:
        facts.error(f"num_attention_heads {heads} is no multiple of num_key_value_heads {groups}")
    head_dim = _head_dim(facts, body, gemma=gemma)
    return {
        "num_heads": heads,
        "num_kv_heads": groups,
        "head_dim": head_dim,
        "attention_k_eq_v": key_is_value,
        "attention_scale": 1.0 if gemma else head_dim**-0.5,
    }


def _head_dim(facts: Facts, body: str, *, gemma: bool) -> int:
    if gemma:
        facts.raw(f"{body}head_dim")
        facts.raw(f"{body}num_key_value_heads")
        facts.say("attention_scale", "backbone gemma4: q_norm and k_norm carry the scale")
        return facts.number("head_dim", [f"{body}global_head_dim"], low=2, high=MOST_HEADS)
    facts.say("attention_scale", "head_dim ** -0.5")
    return facts.number(
        "head_dim",
        [f"{body}head_dim"],
        low=2,
        high=MOST_HEADS,
        default=128,
        why="default 128 of Qwen3Config",
    )


def _value_scale(facts: Facts, kind: Kind) -> float:
    scale = facts.real(
        "attention_value_scale",
        ["dflash_config.attention_value_scale", f"{kind.body}attention_value_scale"],
        default=1.0,
        why="default 1",
    )
    if kind.backbone is Backbone.GEMMA4 and scale != 1.0:
        facts.error("attention_value_scale in Gemma-4 layers is not supported", unsupported=True)
    return scale


def _embedding_scale(facts: Facts, kind: Kind, hidden: int, dtype: str) -> float:
    if kind.backbone is not Backbone.GEMMA4:
        return facts.real("embedding_scale", SCALE_PATHS, default=1.0, why="default 1")
    scale = rounded(math.sqrt(hidden), dtype)
    return facts.real(
        "embedding_scale",
        SCALE_PATHS,
        default=scale,
        why=f"backbone gemma4: sqrt(hidden_size) in {dtype}",
    )


FULL, SLIDING = "full_attention", "sliding_attention"
SWA_WINDOW = "dflash_config.swa_window_size"


def read_layer_types(facts: Facts, kind: Kind, num_layers: int) -> tuple[str, ...]:
    """Return each layer's attention type; ``dflash_config.use_swa`` slides all where none does."""
    body = kind.body
    path = f"{body}layer_types"
    stated = facts.raw(path)
    if stated is not None and (
        not isinstance(stated, list)
        or len(stated) != num_layers
        or not all(isinstance(kind, str) for kind in stated)
    ):
        facts.error(f"{path}: got {stated!r:.80}, expected {num_layers} attention types")
        stated = None
    if stated is None:
        types, source = _derived_types(facts, body, num_layers)
    else:
        types, source = tuple(stated), path
    unknown = sorted(set(types) - {FULL, SLIDING})
    if unknown:
        facts.error(
            f"{path}: layer types {unknown} are not supported, expected {FULL} or {SLIDING}",
            "drafts with linear-attention or recurrent layers cannot be exported",
            unsupported=True,
        )
        types = tuple(FULL for _ in types)
    swa = facts.raw("dflash_config.use_swa")
    if swa is not None and not isinstance(swa, bool):
        facts.error(f"dflash_config.use_swa: got {swa!r:.40}, expected true or false")
    if swa is True and SLIDING not in types:
        types, source = (SLIDING,) * num_layers, "dflash_config.use_swa"
    if kind.backbone is Backbone.GEMMA4 and SLIDING in types:
        facts.error(
            f"{source}: sliding Gemma-4 layers are not known, expected {FULL} in every layer",
            "DeepSpec's published code builds every layer full, with global_head_dim and the "
            "full_attention angles, and never looks at layer_types; what other code made of a "
            "window, of head_dim and of the sliding_attention angles is not published",
            unsupported=True,
        )
        facts.is_whole = False
        types = (FULL,) * num_layers
    facts.say("layers", source)
    return types


def _derived_types(facts: Facts, body: str, num_layers: int) -> tuple[tuple[str, ...], str]:
    first = facts.raw(f"{body}max_window_layers")
    if facts.raw(f"{body}use_sliding_window") is True:
        if facts.raw(f"{body}sliding_window") is None:
            facts.error(
                f"{body}use_sliding_window is true, but {body}sliding_window is missing",
                "a sliding layer needs its window",
            )
        if isinstance(first, int) and not isinstance(first, bool):
            types = tuple(SLIDING if index >= first else FULL for index in range(num_layers))
            return types, f"{body}max_window_layers"
        facts.error(
            f"{body}layer_types is missing, expected it beside use_sliding_window true",
            "state layer_types or max_window_layers",
        )
    return (FULL,) * num_layers, "default: full attention without layer_types"


def read_layers(
    facts: Facts, kind: Kind, types: tuple[str, ...], sinks: frozenset[int]
) -> tuple[LayerSpec, ...]:
    """Resolve window and causality of every layer.

    Args:
        facts: the config.
        kind: speculators count windows from the anchor and never make full layers causal; Muse
            sees the key a whole window away too, ``|p - j| <= window``.
        types: attention type of each layer.
        sinks: layers whose checkpoint holds sink logits.
    """
    window = _window(facts, kind.body, types)
    causal_sliding, causal_full, why = _causality(facts, kind, SLIDING in types)
    facts.say("layers", f"{facts.sources['layers']}; causality: {why}")
    if window is not None and kind.format == "muse":
        window += 1
        facts.say("layers", f"{facts.sources['layers']}; window + 1: Muse includes its far edge")
    edge = WindowEdge.ANCHOR if kind.is_speculators else WindowEdge.QUERY
    return tuple(
        LayerSpec(
            is_causal=causal_sliding, window=window, window_edge=edge, has_sink=index in sinks
        )
        if layer_type == SLIDING
        else LayerSpec(is_causal=causal_full, has_sink=index in sinks)
        for index, layer_type in enumerate(types)
    )


def _window(facts: Facts, body: str, types: tuple[str, ...]) -> int | None:
    paths = [SWA_WINDOW, f"{body}sliding_window"]
    switch = facts.raw(f"{body}use_sliding_window")
    if switch is not None and not isinstance(switch, bool):
        facts.error(f"{body}use_sliding_window: got {switch!r:.40}, expected true or false")
    if SLIDING not in types:
        _warn_unused(facts, body, paths, switch)
        return None
    if facts.raw("dflash_config.use_swa") is False:
        facts.error(
            f"dflash_config.use_swa is false, but {facts.sources['layers']} has {SLIDING} layers",
            "one of the two is wrong; a drafter run with the wrong one only loses acceptance",
        )
    elif switch is False and facts.raw("dflash_config.use_swa") is not True:
        facts.error(
            f"{body}use_sliding_window is false, but layer_types has {SLIDING} layers",
            "one of the two is wrong; a drafter run with the wrong one only loses acceptance",
        )
    return facts.number(
        "window", paths, low=1, high=1 << 30, hint="a sliding layer needs its window"
    )


def _warn_unused(facts: Facts, body: str, paths: list[str], switch: object) -> None:
    """Warn of a window that no layer has, where the config does not say in so many words why."""
    swa = facts.raw("dflash_config.use_swa")
    is_said = switch is False or swa is False
    stated = [path for path in paths if facts.raw(path) not in (None, 0, False)]
    if facts.raw(f"{body}layer_types") is not None:
        stated = [path for path in stated if path == SWA_WINDOW]  # transformers writes the other
    if stated and not is_said:
        why = f"neither {body}layer_types nor {body}use_sliding_window makes a layer slide"
        if switch is True:
            why = f"{body}max_window_layers leaves every layer full"
        facts.warnings.append(
            f"{stated[0]} {facts.raw(stated[0])!r:.40} is not used: {why}; full attention"
        )


def _causality(facts: Facts, kind: Kind, has_sliding: bool) -> tuple[bool, bool, str]:
    for path in ("is_causal", "dflash_config.causal"):
        value = facts.raw(path)
        if value is None:
            continue
        if isinstance(value, bool):
            facts.raw("dflash_config.causal")
            facts.raw("sliding_window_non_causal")
            return value, value, path
        facts.error(f"{path}: got {value!r:.40}, expected true or false")
    if not kind.is_speculators:
        return True, False, "default: sliding layers causal, full layers not"
    value = facts.raw("sliding_window_non_causal")
    if value is None and kind.family is Family.DFLASH2:
        return False, False, "default of speculators' dflash2: sliding_window_non_causal true"
    if value is None:
        if has_sliding:
            facts.warnings.append(
                "sliding_window_non_causal is not stated: taken as false (causal), the "
                "publisher's own default; vLLM's adapter reads a missing key the other way"
            )
        return True, False, "default of speculators: sliding_window_non_causal false"
    if not isinstance(value, bool):
        facts.error(f"sliding_window_non_causal: got {value!r:.40}, expected true or false")
    return not value, False, "sliding_window_non_causal"


def rounded(value: float, dtype: str) -> float:
    """Return a positive value rounded to the nearest one that a float dtype holds, ties to even."""
    if dtype != "bfloat16":
        return float(np.array(value, dtype=dtype))
    bits = int(np.array(value, dtype=np.float32).view(np.uint32))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(np.array(bits & 0xFFFF0000, dtype=np.uint32).view(np.float32))
