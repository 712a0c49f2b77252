"""The draft graph of a checked drafter: weights placed, traced, written and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftrt.bundle import GraphEntry
from draftrt.export.check.compare import check_graph
from draftrt.export.check.drafter import check_draft_sampled
from draftrt.export.check.extent import is_small
from draftrt.export.checkpoint.drafter import LoadedDrafter
from draftrt.export.graph.layers import plan_layers, state_names, write_layers
from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.models.shapes import tensor_shapes
from draftrt.export.models.signature import CAPACITY, draft_signature
from draftrt.export.models.weights import placeholders
from draftrt.export.options import ExportOptions, Report, max_context
from draftrt.export.tracing.trace import trace
from draftrt.export.weights.placement import DRAFT_FILE, place_draft
from draftrt.export.weights.storage import PlacedWeights, weight_files
from draftrt.export.weights.tensors import GraphTensor
from draftrt.export.write_graphs import entry_of, finish_weights, write_graph_of
from draftrt.signature import Signature
from draftrt.spec import DrafterSpec


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
        with_states=True,
    )
    signature = _signature(few, options, context, True)
    model = trace(module, signature, options.profile, state_names(len(plan.traced)))
    return write_layers(model, plan, _signature(spec, options, context, True))
