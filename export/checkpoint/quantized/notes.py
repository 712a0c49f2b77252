"""What of a publisher's quantisation a graph does not keep: activations and caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftrt.export.checkpoint.quantized.settings import Settings

ACTIVATIONS = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "activation_scale",
    "output_scale",
    "output_zero_point",
)
CACHES = ("k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point")
CACHE_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


def left_out(last: str) -> bool:
    """Whether a tensor with this last name belongs to activations or caches."""
    return last in ACTIVATIONS or last in CACHES


def not_kept(settings: Settings, dropped: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for activations and one for caches, where either is quantised.

    Args:
        settings: what the config states.
        dropped: names of the tensors that are left out.
    """
    kinds = list(_activations(settings))
    tensors = _last(dropped, ACTIVATIONS)
    if kinds or tensors:
        how = "static" if tensors or "static" in kinds else "dynamic"
        scales = f" scales ({', '.join(tensors)} left out)" if tensors else " scales"
        yield (
            f"activations are quantised with {how}{scales} in the publisher's runtime: only the "
            "weights are kept, and answers differ from that runtime's"
        )
    tensors = _last(dropped, CACHES)
    scheme = next(
        (key for key in CACHE_KEYS if settings.table.get(key)), CACHE_KEYS[0] if tensors else ""
    )
    if scheme:
        gone = f"; {' and '.join(tensors)} are left out" if tensors else ""
        yield (
            f"{scheme} ({_named(settings.table.get(scheme))}) is not kept: caches stay in the "
            f"graph's precision{gone}"
        )


def _last(names: Sequence[str], known: Sequence[str]) -> list[str]:
    found = {name.rpartition(".")[2] for name in names}
    return [one for one in known if one in found]


def _activations(settings: Settings) -> Iterator[str]:
    """Yield ``static`` or ``dynamic`` for each statement of quantised activations."""
    table = settings.table
    groups = table.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for key in ("input_activations", "output_activations"):
            scheme = group.get(key) if isinstance(group, Mapping) else None
            if isinstance(scheme, Mapping):
                yield "static" if scheme.get("dynamic") in (None, False) else "dynamic"
    scheme = table.get("activation_scheme")
    if scheme:
        yield "static" if scheme == "static" else "dynamic"
    if table.get("quant_algo") == "FP8_PER_CHANNEL_PER_TOKEN":
        yield "dynamic"


def _named(scheme: Any) -> str:
    """Return a cache's scheme in a word or two."""
    if not isinstance(scheme, Mapping):
        return f"{scheme!s:.20}" if scheme else "by its tensors"
    kind = "FP" if scheme.get("type") == "float" else "INT"
    return f"{kind}{scheme.get('num_bits', '')!s:.4}"
