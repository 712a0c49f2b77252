"""A bundle's target graph against its PyTorch module, rebuilt from the bundle alone.

The module has the graph's own weights, and rotary tables computed from the facts. A small graph is
computed whole, both its files; of a large one the layers are, as at the export: every layer's nodes
with those of the first of its kind, a layer of each kind in two rounds, the vocabulary by blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftrt.backends import require
from draftrt.bundle import Bundle
from draftrt.errors import ExportError
from draftrt.files import temporary_folder
from draftrt.onnx_session import onnxruntime_errors
from draftrt.quantization import TARGET
from draftrt.spec import Precision

if TYPE_CHECKING:
    from draftrt.export.manifest_graphs import FileFindings


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """What the comparison of a target graph showed.

    Attributes:
        bundle: its folder.
        precision: element type of the graph.
        files: each file against the nodes and rotary tables that the manifest's facts give.
        compared: a line for everything that was computed and is the same.
        problems: what differs.
    """

    bundle: Path
    precision: Precision
    files: Sequence[FileFindings]
    compared: Sequence[str]
    problems: Sequence[str]

    @property
    def is_same(self) -> bool:
        """Whether the files are the facts' graphs, and something was computed and all is near."""
        return all(self.files) and bool(self.compared) and not self.problems


def check_target_parity(path: Path | str) -> TargetReport:
    """Compare the target graph of a bundle with its PyTorch module.

    Raises:
        BundleError: the bundle has no target graph, or its files are not what it states.
        SpecError: the manifest states facts that no target can have.
        BackendError: a package is missing, or ONNX Runtime refuses the graph.
    """
    bundle = Bundle.open(path)
    entry = bundle.graph(TARGET)
    require("onnx", "onnxruntime", what="parity")
    from draftrt.export.manifest_graphs import compare_with_facts

    files = compare_with_facts(bundle, TARGET)
    compared: list[str] = []
    problems: list[str] = []
    for file in files:
        with onnxruntime_errors(bundle.file(file.file)):
            try:
                compared += _computed(bundle, file.file)
            except ExportError as error:
                problems.append(error.message)
    return TargetReport(
        bundle=bundle.path,
        precision=entry.precision,
        files=files,
        compared=compared,
        problems=problems,
    )


def _computed(bundle: Bundle, file: str) -> list[str]:
    """Compute one file and the module; return a line for each thing that is the same."""
    from draftrt.export.check.extent import is_small
    from draftrt.export.check.reference import bundle_tensors, decoder_of
    from draftrt.export.check.target import check_target, check_target_sampled
    from draftrt.export.graph.files import as_stored
    from draftrt.export.manifest_graphs import taps_of
    from draftrt.spec import Profile

    entry, spec = bundle.graph(TARGET), decoder_of(bundle)
    own = bundle_tensors(bundle, TARGET, spec)
    tensors = as_stored(bundle.file(entry.file), own) if entry.quantization or entry.kept else own
    common = (bundle.file(file), spec, tensors, taps_of(bundle), entry.precision)
    if is_small(tensors):
        with temporary_folder("parity") as scratch:
            profile = Profile(entry.profile)
            line = check_target(*common, profile, entry.max_context, scratch=scratch)
        return [f"{file}: {line}"]
    if file != entry.file:  # its layers are other nodes, compared with the facts above
        return []
    return [f"{file}: {line}" for line in check_target_sampled(*common, entry.max_context)]


def as_text(report: TargetReport) -> list[str]:
    """Return a heading, what was computed, notes, and what differs."""
    verdict = "same" if report.is_same else "different"
    heading = f"{report.bundle}: target graph against pytorch, {report.precision.value}: {verdict}"
    notes = [f"note: {one.note}" for one in report.files if one.note]
    return [heading, *report.compared, *notes, *differences_of(report)]


def differences_of(report: TargetReport) -> list[str]:
    """Return a line for everything that differs."""
    files = [f"{one.file}: {what}" for one in report.files for what in one.sentences]
    return [*files, *report.problems]


def as_json(report: TargetReport) -> dict[str, Any]:
    """Return the report as JSON data."""
    return {
        "bundle": str(report.bundle),
        "precision": report.precision.value,
        "same": report.is_same,
        "compared": list(report.compared),
        "differences": differences_of(report),
        "notes": [one.note for one in report.files if one.note],
    }
