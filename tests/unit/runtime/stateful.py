"""The recorded target with states, exported for tests of what runs it."""

from __future__ import annotations

from pathlib import Path

from draftrt.manifest import GraphEntry

CASE = Path(__file__).parents[2] / "golden-targets" / "text-only"
ATOL, MARGIN = 3e-3, 6e-3  # of its logits and features; of a choice that has to be the recorded one


def export_case(folder: Path, taps: tuple[int, ...]) -> GraphEntry:
    """Export the target in float32, 768 rows of context, with the outputs of these layers."""
    from draftrt.export.checkpoint.decoder import read_decoder
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.options import ExportOptions
    from draftrt.export.weights.placement import place_target
    from draftrt.export.weights.storage import weight_files
    from draftrt.export.write_graphs import write_target_graph

    options, spec = ExportOptions(), read_decoder(read_target(CASE / "target"))
    with weight_files(folder, options.weights) as files:
        placed = place_target(spec, CASE / "target", options, 768, files)
        return write_target_graph(spec, folder, taps, options, lambda line: None, 768, placed)
