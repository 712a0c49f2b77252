"""The target's own graph: traced, written and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftrt.bundle import GraphEntry
from draftrt.export.check.extent import is_small
from draftrt.export.check.target import check_target, check_target_sampled
from draftrt.export.graph.layers import plan_layers, state_name, state_names, write_layers
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.decoder_shapes import decoder_shapes
from draftrt.export.models.signature import CAPACITY
from draftrt.export.models.target_signature import target_signature
from draftrt.export.models.weights import placeholders
from draftrt.export.options import ExportOptions, Report
from draftrt.export.tracing.trace import trace
from draftrt.export.weights.placement import TARGET_FILE
from draftrt.export.weights.storage import PlacedWeights
from draftrt.export.weights.tensors import GraphTensor
from draftrt.export.write_graphs import entry_of, finish_weights, write_graph_of
from draftrt.spec import DecoderSpec


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
    plan = plan_layers(spec.windows)
    few = replace(
        spec,
        windows=tuple(spec.windows[index] for index in plan.traced),
        num_layers=len(plan.traced),
    )
    names = [*decoder_shapes(few), *(name for name in weights if name.startswith("rope."))]
    tensors = {name: weights[plan.name_in_model(name)] for name in names}
    module = Decoder(
        few,
        placeholders(
            {name: tensor.shape for name, tensor in tensors.items()},
            lambda name: tensors[name].torch_dtype,
        ),
        profile=options.profile,
        with_states=True,
    )
    precision = options.precision
    signature = target_signature(few, (), precision, context, is_flexible=True)
    model = trace(module, signature, options.profile, state_names(len(plan.traced)))
    whole = target_signature(spec, taps, precision, context, is_flexible=True)
    return write_layers(model, plan, whole, [state_name(tap) for tap in taps])
