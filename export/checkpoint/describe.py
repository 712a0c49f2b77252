"""What a checkpoint or a bundle holds, as rows for people and as JSON; no weight is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from draftrt.bundle import Bundle
from draftrt.codec import to_json
from draftrt.export.checkpoint.drafter import LoadedDrafter
from draftrt.export.checkpoint.names import beside_text
from draftrt.export.checkpoint.quantized.read import DecodedTensors
from draftrt.manifest import GraphEntry
from draftrt.quantization import describe
from draftrt.spec import DecoderSpec, DrafterSpec, LayerSpec, RopeSpec, TargetSpec

NESTED = {"rope", "layers", "sources", "warnings"}


def describe_drafter(loaded: LoadedDrafter) -> dict[str, Any]:
    """Return what is known of a drafter as JSON data.

    Keys: ``facts`` (name to value), ``sources`` (name to place), ``derived`` (drafts a round,
    feature width, reduced or padded rows), ``borrowed`` (tables from the target), ``size``
    (parameters and bytes, own and borrowed), ``stored`` (layouts of quantised weights, with their
    number), ``ignored`` (tensors left out), ``warnings``.
    """
    spec = loaded.spec
    facts = to_json(spec)
    for name in ("sources", "warnings"):
        facts.pop(name)
    borrowed = [
        name
        for name, source in (
            ("embed_tokens.weight", spec.embed_source),
            ("lm_head.weight", spec.head_source),
        )
        if source.value == "target"
    ]
    return {
        "draft": str(loaded.folder),
        "facts": facts,
        "sources": dict(spec.sources),
        "derived": {
            "num_draft_tokens": spec.num_draft_tokens,
            "feature_size": spec.feature_size,
            "is_reduced": spec.is_reduced,
            "num_padded_rows": spec.num_padded_rows,
        },
        "borrowed": borrowed,
        "size": _sizes(loaded, borrowed),
        "stored": loaded.decoded.layouts(),
        "ignored": dict(loaded.ignored),
        "warnings": list(spec.warnings),
    }


def _sizes(loaded: LoadedDrafter, borrowed: list[str]) -> dict[str, int]:
    sizes = {"parameters": 0, "bytes": 0, "borrowed_parameters": 0, "borrowed_bytes": 0}
    # a tied head is no other tensor
    once = {ref: name for name, ref in reversed([*loaded.tensors.items()])}
    for ref, name in once.items():
        prefix = "borrowed_" if name in borrowed else ""
        count = 1
        for length in ref.shape:
            count *= length
        sizes[f"{prefix}parameters"] += count
        sizes[f"{prefix}bytes"] += ref.stored_bytes
    return sizes


def table(loaded: LoadedDrafter) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, value, source) rows for a terminal."""
    spec, about = loaded.spec, describe_drafter(loaded)
    for field in dataclasses.fields(DrafterSpec):
        if field.name in NESTED:
            continue
        yield field.name, _plain(getattr(spec, field.name)), spec.sources[field.name]
    yield "rope", _rope(spec.rope), spec.sources["rope"]
    yield from _layers(spec)
    for name, value in about["derived"].items():
        yield name, _plain(value), "derived"
    size = about["size"]
    yield "size", f"{size['parameters']:,} parameters, {size['bytes']:,} bytes", "tensor headers"
    if about["borrowed"]:
        amount = (
            f"{size['borrowed_parameters']:,} parameters, {size['borrowed_bytes']:,} bytes"
            if loaded.target is not None
            else "pass --target to see them"
        )
        yield (
            "borrowed from the target",
            f"{', '.join(about['borrowed'])} ({amount})",
            "not shipped",
        )
    for name, reason in loaded.ignored.items():
        yield "ignored tensor", name, reason
    yield from stored_table(loaded.decoded)


def decoder_table(spec: DecoderSpec) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, value, source) rows of a target's layers."""
    heads = f"{spec.num_heads} heads of {spec.head_dim}, {spec.num_kv_heads} of keys and values"
    tied = ", head tied to the embedding" if spec.tie_word_embeddings else ""
    yield (
        "target layers",
        f"{spec.num_layers} of {spec.hidden_size}, {heads}{tied}",
        "target config",
    )
    yield "target rope", _rope(spec.rope), spec.sources["rope"]
    windows = sorted({window for window in spec.windows if window is not None})
    count = sum(window is not None for window in spec.windows)
    whole = "every layer" if spec.delta is None else "every other layer"
    seen = f"{count} layers see {_plain(tuple(windows))} tokens" if count else f"{whole} sees all"
    if spec.delta is not None:
        delta = spec.delta
        yield (
            "target states",
            f"{len(delta.layers)} layers by the gated delta rule, {delta.num_value_heads} of "
            f"{delta.key_dim} x {delta.value_dim} and a convolution over {delta.kernel_size} rows; "
            f"{delta.carried_rows} rows can be taken back",
            spec.sources["delta"],
        )
    yield "target windows", seen, spec.sources["windows"]
    if spec.muse is not None:
        turned = {"sliding": spec.muse.sliding_has_rope, "full": spec.muse.full_has_rope}
        without = [kind for kind, turns in turned.items() if not turns]
        seen = f"{' and '.join(without)} layers" if without else "none"
        yield "target layers without positions", seen, spec.sources["muse"]


def stored_table(decoded: DecodedTensors) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, value, source) rows of a target's quantised weights and what it leaves out."""
    beside = beside_text(decoded.tensors)
    for what in dict.fromkeys(beside.values()):
        names = [name for name, part in beside.items() if part == what]
        yield "left out", f"{len(names)} tensors of {what}: {names[0]} ...", "tensor names"
    for layout, count in decoded.layouts().items():
        yield "stored weights", f"{count}: {layout}", "tensor headers"
    for note in decoded.notes:
        yield "not kept", note, "config, tensor headers"


def target_table(spec: TargetSpec) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, value, source) rows of a target's facts."""
    for field in dataclasses.fields(TargetSpec):
        if field.name != "sources":
            yield field.name, _plain(getattr(spec, field.name)), spec.sources[field.name]


def _layers(spec: DrafterSpec) -> Iterator[tuple[str, str, str]]:
    """One row a run of layers with the same rule."""
    start = 0
    for index in range(1, len(spec.layers) + 1):
        if index == len(spec.layers) or spec.layers[index] != spec.layers[start]:
            span = f"layer {start}" if index - start == 1 else f"layers {start}-{index - 1}"
            yield span, _layer(spec.layers[start]), spec.sources["layers"]
            start = index


def _layer(layer: LayerSpec) -> str:
    parts = [
        "full"
        if layer.window is None
        else f"window {layer.window} from the {layer.window_edge.value}"
    ]
    parts.append("causal" if layer.is_causal else "not causal")
    return ", ".join(parts + (["sinks"] if layer.has_sink else []))


def _rope(rope: RopeSpec) -> str:
    extras = [
        f"{field.name} {_plain(value)}"
        for field in dataclasses.fields(rope)
        if field.name not in ("layout", "theta", "type", "rotary_dim", "head_dim")
        and (value := getattr(rope, field.name)) is not None
        and value is not True
    ]
    lead = f"{rope.type}, {rope.layout.value}, theta {rope.theta:g}"
    lead += f", {rope.rotary_dim} of {rope.head_dim} dims"
    return ", ".join([lead, *extras])


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ", ".join(
            f"{f.name} {_plain(getattr(value, f.name))}" for f in dataclasses.fields(value)
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        shown = ", ".join(_plain(item) for item in value[:12])
        return shown + (", ..." if len(value) > 12 else "")
    if isinstance(value, float):
        return f"{value:g}"
    return str(getattr(value, "value", value))


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return what is known of a bundle as JSON data.

    Keys: ``bundle``, ``drafter``, ``target``, ``graphs`` (no signatures), ``plans``, ``created``
    and ``command``.
    """
    facts = to_json(bundle.manifest)
    for graph in facts["graphs"].values():
        del graph["signature"]
    return {"bundle": str(bundle.path)} | {
        name: facts[name] for name in ("drafter", "target", "graphs", "plans", "created", "command")
    }


def bundle_table(bundle: Bundle) -> Iterator[tuple[str, str, str]]:
    """Yield (what, description, file and size) rows for a terminal."""
    manifest = bundle.manifest
    if manifest.drafter is not None:
        spec = manifest.drafter
        about = f"{spec.family.value}, {spec.num_layers} layers, {spec.num_draft_tokens} drafts"
        yield "drafter", about, "manifest.json"
    target = manifest.target
    yield "target", f"{target.architecture}, {target.num_layers} layers", "manifest.json"
    for name, entry in manifest.graphs.items():
        size = manifest.files[entry.data].bytes if entry.data in manifest.files else 0
        yield f"graph {name}", _graph(entry), f"{entry.file}, {size / 1e6:.1f} MB of weights"
        for line in entry.stored:
            yield f"weights of {name}", line, "manifest.json"
    for plan in manifest.plans.values():
        sms = ", ".join(str(sm) for sm in plan.sms)
        about = f"{plan.backend} {plan.backend_version}, SM {sms}"
        yield f"plan of {plan.graph}", about, f"{plan.file}, {plan.size_bytes / 1e6:.1f} MB"
    yield "made", manifest.created, manifest.command


def _graph(entry: GraphEntry) -> str:
    weights = describe(entry.quantization) or "weights as they were"
    return (
        f"{entry.precision.value}, {weights}, {entry.profile}, opset {entry.opset}, "
        f"{entry.max_context} rows"
    )
