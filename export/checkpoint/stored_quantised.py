"""Checkpoints whose weights are stored quantised, by key or by tensor: told in one finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftrt.dtypes import FLOATS
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.reader import Facts

KEYS = ("quantization_config", "quantization", "compression_config", "hf_quant_config")
QUANTISED: tuple[tuple[str, str], ...] = (
    # names of tensors, layout; of several the first is told
    (r"weight_scale_2$|weight_global_scale$", "NVFP4"),
    (r"(qzeros|g_idx)$", "GPTQ or AWQ"),
    (r"qweight$", "GPTQ or AWQ"),
    (r"(weight_packed|weight_shape)$", "compressed-tensors (packed)"),
    (r"weight_scale(_inv)?$|input_scale$", "FP8"),
    (r"\.(scales|biases)$", "MLX"),
)


def refuse_quantised(
    facts: Facts, body: str = "", refs: Mapping[str, TensorRef] | None = None
) -> None:
    """Add one finding where a config or its tensors say that weights are stored quantised.

    Nothing that follows from it is looked at any more: `Facts.is_whole` becomes false where tensors
    were given.

    Args:
        facts: the config.
        body: where the keys of the layers are, looked at beside the top.
        refs: the checkpoint's tensors by name.
    """
    stated = {
        path: table
        for path in dict.fromkeys(scope + key for scope in ("", body) for key in KEYS)
        if facts.raw(path) is not None and (table := facts.table(path))
    }
    layout, example = _layout(refs or {})
    if not stated and not layout:
        return
    methods = list(dict.fromkeys(filter(None, map(_method, stated.values()))))
    what = ", ".join(methods) or layout or "unnamed"
    evidence = [*stated, *([f"tensor {example!r}"] if example else [])]
    facts.error(
        f"quantised weights ({what}) are not supported: {', '.join(evidence)}",
        "give the publisher's unquantised checkpoint (bf16); draftrt quantises graphs itself",
        unsupported=True,
    )
    if refs:
        facts.is_whole = False


def _method(table: Mapping[str, Any]) -> str:
    """Return how a config names the quantisation; MLX names it by its sizes alone."""
    named = [table[key] for key in ("quant_method", "quant_algo", "format") if table.get(key)]
    if named:
        return f"{named[0]!s:.40}"
    return f"MLX, {table['bits']!s:.8} bits" if {"bits", "group_size"} <= set(table) else ""


def _layout(refs: Mapping[str, TensorRef]) -> tuple[str, str]:
    """Return the layout that names and element types show, and a tensor that shows it."""
    for pattern, layout in QUANTISED:
        for name in refs:
            if re.search(pattern, name):
                return layout, name
    for name, ref in refs.items():
        if name.endswith("weight") and ref.dtype not in (*FLOATS, "float64"):
            return f"dtype {ref.dtype}", name
    return "", ""
