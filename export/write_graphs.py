"""What the draft graph and the target's have in common once they are traced: files and entry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.bundle import GraphEntry
from draftrt.export.check.compare import check_file
from draftrt.export.check.onnx_file import check_channels
from draftrt.export.graph.files import flexible_path, write_graph
from draftrt.export.graph.initialisers import as_stored
from draftrt.export.graph.quantize import quantize_graph
from draftrt.export.options import ExportOptions, Report
from draftrt.export.weights.storage import PlacedWeights
from draftrt.export.weights.tensors import GraphTensor
from draftrt.export.weights.weight_slices import is_read_whole
from draftrt.signature import Signature


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
    )
