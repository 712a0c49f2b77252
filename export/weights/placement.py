"""Where the weights of a bundle's graphs lie, decided before PyTorch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from draftrt.export.checkpoint.drafter import LoadedDrafter
from draftrt.export.graph.quantize import check_quantization
from draftrt.export.options import ExportOptions
from draftrt.export.weights.storage import PlacedWeights, WeightFiles
from draftrt.export.weights.tensors import GraphTensor, draft_tensors, target_tensors
from draftrt.quantization import DRAFT, TARGET
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
    return files.place(f"{file}.data", tensors, quantization)
