"""Where the weights of a bundle's graphs lie, decided before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from draftrt.errors import UnsupportedError
from draftrt.export.checkpoint.drafter import LoadedDrafter
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.options import ExportOptions
from draftrt.export.weights.kept import FormChoice, keep_codes
from draftrt.export.weights.storage import PlacedWeights, WeightFiles
from draftrt.export.weights.tensors import INT4_OPSET, draft_tensors, target_tensors
from draftrt.quantization import (
    DRAFT,
    TARGET,
    Part,
    Quantization,
    Scheme,
    block_of,
    part_of,
)
from draftrt.spec import DecoderSpec

DRAFT_FILE, TARGET_FILE = "draft.onnx", "target.onnx"


def place_draft(
    loaded: LoadedDrafter, options: ExportOptions, context: int, files: WeightFiles
) -> PlacedWeights:
    """Decide where the weights of the draft graph lie, and begin to copy them.

    Raises:
        UnsupportedError: a part cannot be quantised as asked.
    """
    tensors = draft_tensors(loaded.spec, loaded.tensors, options.precision, context)
    return _place(DRAFT, DRAFT_FILE, tensors, options, files)


def place_target(
    spec: DecoderSpec, checkpoint: Path, options: ExportOptions, context: int, files: WeightFiles
) -> PlacedWeights:
    """Decide where the weights of the target graph lie, and begin to copy them.

    Raises:
        CheckpointError: tensors missing, left over or of another shape; all at once.
        UnsupportedError: a part cannot be quantised as asked.
    """
    tensors = target_tensors(spec, checkpoint, options.precision, context)
    return _place(TARGET, TARGET_FILE, tensors, options, files)


def _place(
    graph: str,
    file: str,
    tensors: Mapping[str, GraphTensor],
    options: ExportOptions,
    files: WeightFiles,
) -> PlacedWeights:
    quantization = options.quantization.get(graph, {})
    check_quantization(tensors, quantization, options.profile.opset)
    tensors = keep_codes(tensors, FormChoice(options.profile.opset, options.sms, options.prefer))
    quantization = {
        part: scheme for part, scheme in quantization.items() if _has_left(part, tensors)
    }
    return files.place(f"{file}.data", tensors, quantization)


def _has_left(part: Part, tensors: Mapping[str, GraphTensor]) -> bool:
    """Whether a part has weights that are not held by their checkpoint's own codes."""
    return part is Part.EMBEDDING or any(
        tensor.kept is None
        for name, tensor in tensors.items()
        if part_of(name, is_product=True) is part
    )


def check_quantization(
    tensors: Mapping[str, GraphTensor], quantization: Quantization, opset: int
) -> None:
    """Refuse what cannot be quantised as asked, before a graph is traced.

    Raises:
        UnsupportedError: int4 over a width that no block divides, or below opset 21.
    """
    if Scheme.INT4 not in quantization.values():
        return
    if opset < INT4_OPSET:
        raise UnsupportedError(
            f"--quantize int4: got opset {opset}, expected {INT4_OPSET} or later",
            hint="use --quantize int8 with --graph compat, or --graph fixed",
        )
    for name, tensor in tensors.items():
        part = part_of(name, is_product=True)
        if part is not None and quantization.get(part) is Scheme.INT4:
            block_of(name, tensor.shape[1])
