"""The graphs of a drafter and of its target: traced, written and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftrt.export.check.drafter import check_draft_sampled, check_graph
from draftrt.export.check.extent import is_small
from draftrt.export.check.onnx_file import check_channels, check_file
from draftrt.export.check.target import check_target, check_target_sampled
from draftrt.export.checkpoint.drafter import LoadedDrafter
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.files import as_stored, flexible_path, write_graph
from draftrt.export.graph.layers import plan_layers, write_layers
from draftrt.export.graph.quantize import quantize_graph
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.models.shapes import decoder_shapes, kinds_of_layers, only_layers, tensor_shapes
from draftrt.export.models.signature import CAPACITY, draft_signature, target_signature
from draftrt.export.models.weights import placeholders
from draftrt.export.options import ExportOptions, Report, max_context
from draftrt.export.tracing.names import state_name
from draftrt.export.tracing.trace import trace
from draftrt.export.weights.data_file import is_read_whole
from draftrt.export.weights.kept import described
from draftrt.export.weights.placement import DRAFT_FILE, TARGET_FILE, place_draft
from draftrt.export.weights.storage import PlacedWeights, weight_files
from draftrt.export.weights.tensors import PREFIX
from draftrt.manifest import GraphEntry
from draftrt.signature import Signature
from draftrt.spec import DecoderSpec, DrafterSpec


def write_graph_of(
    model: Any, weights: PlacedWeights, path: Path, sizes: Mapping[str, int]
) -> Mapping[str, GraphTensor]:
    """Quantise what is to be, write the graph, and return its weights as the file holds them.

    What is copied without being quantised may still be on its way; see `finish_weights`.
    """
    uses = quantize_graph(model.graph, weights.tensors, weights.quantization)
    quantised = weights.files.append_quantised(weights.data, uses) if uses else []
    write_graph(model, weights.tensors, weights.places, path, sizes, quantised)
    if uses:
        check_channels(path, weights.tensors)
    return as_stored(path, weights.tensors) if uses else weights.tensors


def finish_weights(
    path: Path, weights: PlacedWeights, signatures: tuple[Signature, Signature], report: Report
) -> None:
    """Wait until all weights of a written graph are there, and check its two files.

    Args:
        path: its ONNX file.
        weights: where its weights lie.
        signatures: of that file and of the flexible one.
        report: gets a line.

    Raises:
        ExportError: a file is not valid ONNX, or not of its signature.
    """
    written, linked = weights.finish(), weights.linked_bytes()
    report(
        f"write: {path.name} and {written.bytes / 1e6:.1f} MB of weights"
        + (f", {linked / 1e6:.1f} MB more in the checkpoint" if linked else "")
    )
    for file, signature in zip((path, flexible_path(path)), signatures, strict=True):
        check_file(file, signature)


def entry_of(
    path: Path, weights: PlacedWeights, options: ExportOptions, context: int, signature: Signature
) -> GraphEntry:
    """Return the manifest entry of a written graph.

    Args:
        path: its ONNX file.
        weights: where its weights lie.
        options: how it was exported.
        context: rows of each cache.
        signature: its inputs and outputs.
    """
    return GraphEntry(
        file=path.name,
        flexible=flexible_path(path).name,
        data=weights.data,
        precision=options.precision,
        profile=options.profile.value,
        opset=options.profile.opset,
        max_context=context,
        signature=signature,
        quantization=dict(weights.quantization),
        borrowed=weights.borrowed(),
        weight_bytes=weights.num_bytes(),
        read_bytes=weights.num_bytes(is_read_whole),
        kept={name: one.kept for name, one in weights.tensors.items() if one.kept is not None},
        stored=tuple(described(weights.tensors)),
        sms=options.sms,
        prefer=options.prefer,
    )


def write_draft_graph(
    loaded: LoadedDrafter,
    folder: Path,
    options: ExportOptions,
    report: Report,
    context: int | None = None,
    weights: PlacedWeights | None = None,
) -> GraphEntry:
    """Trace, write and check the draft graph of a checked drafter; return its manifest entry.

    Args:
        loaded: the drafter.
        folder: where to write.
        options: see `ExportOptions`.
        report: gets one line a step.
        context: rows of each cache; None: as the options and the drafter say.
        weights: what `place_draft` returned; None to place them here.
    """
    context = context or max_context(options, loaded.spec)
    if weights is None:
        with weight_files(folder, options.weights) as files:
            placed = place_draft(loaded, options, context, files)
            return write_draft_graph(loaded, folder, options, report, context, placed)
    spec, precision = loaded.spec, options.precision
    if context > spec.rope.max_position_embeddings:
        report(
            f"warning: max_context {context} is beyond the {spec.rope.max_position_embeddings} "
            "positions the drafter declares; acceptance may fall there"
        )
    fixed, flexible = (_signature(spec, options, context, flag) for flag in (False, True))
    report(
        f"trace: {spec.family.value}, {spec.num_layers} layers, {precision.value}, "
        f"max_context {context}"
    )
    model = record_draft(spec, weights.tensors, options, context)
    path = folder / DRAFT_FILE
    tensors = write_graph_of(model, weights, path, {CAPACITY: context})
    finish = partial(finish_weights, path, weights, (fixed, flexible), report)
    if is_small(tensors):
        finish()
        lines = check_graph(path, spec, tensors, fixed, precision, context)
    else:
        lines = check_draft_sampled(path, spec, tensors, fixed, precision, context, finish)
    for line in lines:
        report(f"check: {line}")
    return entry_of(path, weights, options, context, fixed)


def _signature(
    spec: DrafterSpec, options: ExportOptions, context: int, is_flexible: bool
) -> Signature:
    return draft_signature(
        spec,
        options.precision,
        context,
        options.extra_outputs,
        is_flexible=is_flexible,
        is_sampled=options.sampled,
    )


def record_draft(
    spec: DrafterSpec, weights: Mapping[str, GraphTensor], options: ExportOptions, context: int
) -> Any:
    """Return the whole graph of a drafter, a layer of each kind traced; its weights are only named.

    Args:
        spec: the drafter.
        weights: shape and element type of every weight; no content is read.
        options: see `ExportOptions`.
        context: rows of each cache.
    """
    plan = plan_layers(spec.layers)
    few = replace(
        spec, layers=tuple(spec.layers[i] for i in plan.traced), num_layers=len(plan.traced)
    )
    names = [*tensor_shapes(few), *(name for name in weights if name.startswith("rope."))]
    tensors = {name: weights[plan.name_in_model(name)] for name in names}
    kind = SampledDrafter if options.sampled else Drafter
    module = kind(
        few,
        placeholders(
            {name: tensor.shape for name, tensor in tensors.items()},
            lambda name: tensors[name].torch_dtype,
        ),
        profile=options.profile,
        extra_outputs=options.extra_outputs,
    )
    signature = _signature(few, options, context, True)
    model = trace(module, signature, options.profile)
    return write_layers(model, plan, _signature(spec, options, context, True))


def write_target_graph(
    spec: DecoderSpec,
    folder: Path,
    taps: tuple[int, ...],
    options: ExportOptions,
    report: Report,
    context: int,
    weights: PlacedWeights,
) -> GraphEntry:
    """Trace, write and check a target's graph into a bundle folder; return its manifest entry.

    Args:
        spec: the target's layers.
        folder: where to write.
        taps: layers whose outputs a drafter reads.
        options: see `ExportOptions`.
        report: gets one line a step.
        context: rows of each cache.
        weights: what `draftrt.export.weights.placement.place_target` returned.
    """
    precision, profile = options.precision, options.profile
    fixed, flexible = (
        target_signature(spec, taps, precision, context, is_flexible=flag) for flag in (False, True)
    )
    report(f"trace: target, {spec.num_layers} layers, {precision.value}, max_context {context}")
    model = record_target(spec, taps, weights.tensors, options, context)
    path = folder / TARGET_FILE
    tensors = write_graph_of(model, weights, path, {CAPACITY: context})
    finish = partial(finish_weights, path, weights, (fixed, flexible), report)
    if is_small(tensors):
        finish()
        report(f"check: {check_target(path, spec, tensors, taps, precision, profile, context)}")
    else:
        for line in check_target_sampled(path, spec, tensors, taps, precision, context, finish):
            report(f"check: {line}")
    return entry_of(path, weights, options, context, fixed)


def record_target(
    spec: DecoderSpec,
    taps: tuple[int, ...],
    weights: Mapping[str, GraphTensor],
    options: ExportOptions,
    context: int,
) -> Any:
    """Return the whole graph of a target, a layer of each kind traced; its weights are only named.

    Args:
        spec: the target's layers.
        taps: layers whose outputs a drafter reads.
        weights: shape and element type of every weight; no content is read.
        options: see `ExportOptions`.
        context: rows of each cache.
    """
    plan = plan_layers(kinds_of_layers(spec))
    few = only_layers(spec, plan.traced)
    names = [*decoder_shapes(few), *(name for name in weights if name.startswith("rope."))]
    tensors = {name: weights[plan.name_in_model(name)] for name in names}
    module = Decoder(
        few,
        placeholders(
            {name: tensor.shape for name, tensor in tensors.items()},
            lambda name: tensors[name].torch_dtype,
        ),
        profile=options.profile,
    )
    precision = options.precision
    signature = target_signature(few, (), precision, context, is_flexible=True)
    model = trace(module, signature, options.profile)
    whole = target_signature(spec, taps, precision, context, is_flexible=True)
    return write_layers(model, plan, whole, [state_name(tap, PREFIX) for tap in taps])
