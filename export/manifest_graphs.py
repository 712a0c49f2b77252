"""The graphs that a manifest's facts give, recorded anew, and where a bundle's files are others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftrt.bundle import Bundle
from draftrt.errors import BundleError
from draftrt.export.check.reference import REBUILDS, bundle_tensors
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.differences import NodeDifference, graph_differences
from draftrt.export.graph.files import flexible_path, read_initialisers, write_graph
from draftrt.export.graph.quantize import quantize_graph
from draftrt.export.models.shapes import rope_of
from draftrt.export.models.signature import CAPACITY, EXTRA_OUTPUTS, SAMPLED_INPUTS
from draftrt.export.options import ExportOptions
from draftrt.export.weights.storage import ByteRange, QuantizedWeight
from draftrt.export.write_graphs import record_draft, record_target
from draftrt.files import temporary_folder
from draftrt.manifest import GraphEntry
from draftrt.onnx_session import read_onnx
from draftrt.provenance import tool_versions
from draftrt.quantization import DRAFT
from draftrt.spec import DecoderSpec, DrafterSpec, Profile, RopeSpec

ELSEWHERE = ByteRange("", 0, 0)  # weights are called, and not read
TABLE_ATOL = 1e-5
ANGLE_STEPS = 2 * 2.0**-23  # of a frequency: float32 powers differ by so much between machines
OTHER_VERSION = (
    "{file} was written by draftrt {found}, this is {own}: its nodes may be others, and are not "
    "compared one by one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFindings:
    """Where one ONNX file of a bundle is not the graph of its facts.

    Attributes:
        file: its name.
        nodes: the nodes that differ, in the file's order.
        sentences: what differs, for people: nodes, constants, rotary tables.
        note: what could not be compared; empty when nothing.
    """

    file: str
    nodes: tuple[NodeDifference, ...] = ()
    sentences: tuple[str, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return not self.sentences


def compare_with_facts(
    bundle: Bundle, graph: str, spec: DrafterSpec | DecoderSpec | None = None
) -> tuple[FileFindings, ...]:
    """Compare the ONNX files of a graph with those that facts give.

    Args:
        bundle: the bundle.
        graph: ``draft`` or ``target``.
        spec: the facts; None for those of the manifest.

    Returns:
        One entry for each of the graph's files.

    Raises:
        BundleError: the files hold other inputs, outputs or weights than the manifest states, or
            the facts give no graph.
    """
    entry = bundle.graph(graph)
    own = spec or (bundle.drafter() if graph == DRAFT else bundle.manifest.decoder)
    assert own is not None
    tensors = bundle_tensors(bundle, graph, own)
    expected = _expected(bundle, graph, own, tensors)
    versions = bundle.manifest.tools.get("draftrt", "unknown"), tool_versions()["draftrt"]
    return tuple(
        _findings(bundle, entry, file, own, expected[index], versions)
        for index, file in enumerate((entry.file, entry.flexible))
        if file
    )


def _findings(
    bundle: Bundle,
    entry: GraphEntry,
    file: str,
    spec: DrafterSpec | DecoderSpec,
    expected: Any,
    versions: tuple[str, str],
) -> FileFindings:
    tables = _wrong_tables(bundle.file(file), spec, entry.max_context)
    if versions[0] != versions[1]:
        note = OTHER_VERSION.format(file=file, found=versions[0], own=versions[1])
        return FileFindings(file=file, sentences=tuple(tables), note=note)
    found = graph_differences(read_onnx(bundle.file(file)), expected)
    if found.types:
        raise BundleError(
            f"{bundle.path}: {file} is not the graph that the manifest describes: "
            + "; ".join(found.types),
            hint="graph and manifest do not belong together; export again",
        )
    return FileFindings(file=file, nodes=found.nodes, sentences=(*tables, *found.sentences()))


def _expected(
    bundle: Bundle,
    graph: str,
    spec: DrafterSpec | DecoderSpec,
    tensors: Mapping[str, GraphTensor],
) -> tuple[Any, Any]:
    """Return the models that would be written now: with fixed cache rows, and with open ones."""
    entry = bundle.graph(graph)
    tensors = {name: replace(tensor, kept=entry.kept.get(name)) for name, tensor in tensors.items()}
    fed = {tensor.name for tensor in entry.signature.inputs}
    given = [tensor.name for tensor in entry.signature.outputs]
    options = ExportOptions(
        precision=entry.precision,
        profile=Profile(entry.profile),
        extra_outputs=tuple(name for name in EXTRA_OUTPUTS if name in given),
        sampled=fed.issuperset(SAMPLED_INPUTS),
    )
    try:
        if isinstance(spec, DrafterSpec):
            model = record_draft(spec, tensors, options, entry.max_context)
        else:
            taps = taps_of(bundle)
            model = record_target(spec, taps, tensors, options, entry.max_context)
        uses = quantize_graph(model.graph, tensors, entry.quantization)
        quantised = [QuantizedWeight(use, *[ELSEWHERE] * (3 if use.base else 2)) for use in uses]
        with temporary_folder("graph") as folder:
            path = folder / "expected.onnx"
            places = dict.fromkeys(tensors, ELSEWHERE)
            write_graph(model, tensors, places, path, {CAPACITY: entry.max_context}, quantised)
            return read_onnx(path), read_onnx(flexible_path(path))
    except REBUILDS as error:
        raise BundleError(
            f"{bundle.path}: the facts in its manifest give no {graph} graph: {error!s:.200}",
            hint="the manifest was changed; export again",
        ) from error


def taps_of(bundle: Bundle) -> tuple[int, ...]:
    """Return the layers whose results a bundle's target graph gives to its drafter."""
    drafter = bundle.manifest.drafter
    return () if drafter is None else drafter.target_layer_ids


def _wrong_tables(path: Path, spec: DrafterSpec | DecoderSpec, max_context: int) -> list[str]:
    """Compare the rotary tables of a file with those that the facts give, over all positions."""
    from draftrt.export.models.rope import table_tensors

    kinds: dict[str, RopeSpec] = {}
    if isinstance(spec, DrafterSpec):
        kinds["rope"] = spec.rope
    else:
        for window in dict.fromkeys(spec.windows):
            embedding, prefix = rope_of(spec, window)
            kinds[prefix] = embedding
    stored = read_initialisers(path)
    return [
        problem
        for prefix, rope in kinds.items()
        for name, want in table_tensors(rope, max_context, prefix).items()
        if name in stored
        and (problem := _wrong_table(name, stored[name].read().numpy(), want, rope))
    ]


def _wrong_table(name: str, got: Any, want: Any, rope: RopeSpec) -> str:
    """Say where a table [positions, rotary_dim / 2], or only [rotary_dim / 2], is another."""
    facts = f"theta {rope.theta:g}, type {rope.type}"
    if got.shape != want.shape:
        return f"{name} has shape {list(got.shape)}, expected {list(want.shape)} ({facts})"
    positions = np.arange(len(want))[:, None] if want.ndim == 2 else np.zeros(want.shape)
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - want) <= scale * (TABLE_ATOL + ANGLE_STEPS * positions))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"position {at[0]}, pair {at[1]}" if len(at) == 2 else f"pair {at[0]}"
    return (
        f"{name} is not that of {facts}: from {where} on, got {got[at]:.6g}, expected "
        f"{want[at]:.6g}"
    )
