"""Which constants a rotary embedding needs in a graph, known before they are computed."""

from __future__ import annotations

from draftrt.spec import DecoderSpec, RopeSpec

PREFIX = "rope"  # of the constants' names
FULL_ROPE = "rope.full"  # the same for the full layers of Gemma-4


def rope_of(spec: DecoderSpec, window: int | None) -> tuple[RopeSpec, str]:
    """Return the rotary embedding of the layers with this window, and its constants' prefix."""
    if spec.gemma4 is not None and window is None:
        return spec.gemma4.full_rope, FULL_ROPE
    return spec.rope, PREFIX


def table_shapes(
    rope: RopeSpec, num_positions: int, prefix: str = PREFIX
) -> dict[str, tuple[int, ...]]:
    """Return the constants of an embedding over so many positions, name to shape; float32 all."""
    width = rope.rotary_dim // 2
    if rope.type == "dynamic":
        return {f"{prefix}.inv_freq": (width,)}
    names = ["cos", "sin"] + (["cos_long", "sin_long"] if rope.type == "longrope" else [])
    return {f"{prefix}.{name}": (num_positions, width) for name in names}
