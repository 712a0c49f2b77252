"""What the configs of all these targets state alike: sizes, biases, and a type for each layer."""

from __future__ import annotations

from typing import Any

from draftrt.codec import shown
from draftrt.export.config.layers import FULL
from draftrt.export.config.reader import Facts

CARRIED_ROWS = 32  # of a call, that a layer with a state leaves to the next one


def check_model_type(facts: Facts, path: str, expected: str) -> None:
    """Refuse a ``model_type`` that is another than its architecture's."""
    if (kind := facts.raw(path)) != expected:
        facts.error(
            f"{path}: got {shown(kind)}, expected {expected!r} beside these architectures",
            "transformers chooses its code by model_type, others by architectures; they disagree",
        )


def read_sizes(facts: Facts, body: str) -> dict[str, int]:
    """Resolve the sizes that no architecture has a default for, as fields of `DecoderSpec`.

    Args:
        facts: the config.
        body: prefix of the text model's keys, with its dot, or empty.
    """
    return {
        name: facts.number(name, [f"{body}{key}"], low=low, high=high)
        for name, key, low, high in (
            ("hidden_size", "hidden_size", 2, 1 << 24),
            ("num_layers", "num_hidden_layers", 1, 4096),
            ("num_heads", "num_attention_heads", 1, 1 << 14),
            ("num_kv_heads", "num_key_value_heads", 1, 1 << 14),
        )
    }


def read_mlp_width(facts: Facts, body: str) -> int:
    """Resolve the width of the MLPs."""
    return facts.number("intermediate_size", [f"{body}intermediate_size"], low=1, high=1 << 24)


def read_attention_bias(facts: Facts, body: str) -> dict[str, bool]:
    """Resolve the biases of the attention's four projections, which one key states."""
    bias = facts.flag("qkv_bias", [f"{body}attention_bias"], default=False, why="default false")
    facts.say("output_bias", facts.sources.get("qkv_bias", "attention_bias"))
    return {"qkv_bias": bias, "output_bias": bias}


def check_types(
    facts: Facts, path: str, types: Any, kinds: tuple[str, ...], num_layers: int, hint: str = ""
) -> tuple[str, ...]:
    """Return the type of each layer; all full ones where the list is none of these types.

    Args:
        facts: gets the finding.
        path: key of the list.
        types: what it holds, or what the config's other keys make of it.
        kinds: the types there are.
        num_layers: how many it has to name.
        hint: the finding's.
    """
    if (
        isinstance(types, list)
        and len(types) == num_layers
        and all(kind in kinds for kind in types)
    ):
        return tuple(types)
    facts.error(f"{path}: got {shown(types)}, expected {num_layers} of {', '.join(kinds)}", hint)
    return (FULL,) * num_layers


def check_some_attend(facts: Facts, path: str, types: tuple[str, ...]) -> None:
    """Refuse layers that all keep a state."""
    if FULL not in types:
        facts.error(f"{path}: got no {FULL}, expected one layer of it", unsupported=True)
