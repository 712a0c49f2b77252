"""Who may look at whom in each layer: layer types, windows, causality, sinks (REFERENCE: masks)."""

from __future__ import annotations

from draftrt.export.config.family import Kind
from draftrt.export.config.reader import Facts
from draftrt.spec import Backbone, LayerSpec, WindowEdge

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
    causal_sliding, causal_full, why = _causality(facts, kind.is_speculators, SLIDING in types)
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


def _causality(facts: Facts, is_speculators: bool, has_sliding: bool) -> tuple[bool, bool, str]:
    for path in ("is_causal", "dflash_config.causal"):
        value = facts.raw(path)
        if value is None:
            continue
        if isinstance(value, bool):
            facts.raw("dflash_config.causal")
            facts.raw("sliding_window_non_causal")
            return value, value, path
        facts.error(f"{path}: got {value!r:.40}, expected true or false")
    if not is_speculators:
        return True, False, "default: sliding layers causal, full layers not"
    value = facts.raw("sliding_window_non_causal")
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
