"""Where a bundle's draft graph leaves its reference: its own module, or the checkpoint's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.backends import require
from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.files import temporary_folder
from draftrt.spec import DrafterSpec, Precision
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.rounds import reference_rounds
from draftrt.validate.bisect.search import Divergence, Search
from draftrt.validate.compare.checkpoint import Fresh, read_fresh
from draftrt.validate.rounds.plan import plan_rounds

if TYPE_CHECKING:
    from draftrt.export.manifest_graphs import FileFindings
    from draftrt.export.models.drafter import Drafter

NUM_ROUNDS = 4
ROOM = 48  # rows of context beyond the largest window


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSearch:
    """What the search of one ONNX file gave.

    Attributes:
        file: its name.
        num_rounds: rounds compared.
        num_places: places that the reference shows and the graph has.
        num_sessions: sessions opened.
        divergence: the first difference of a value; None where there is none.
        facts: the file against the nodes and rotary tables that the manifest's facts give.
    """

    file: str
    num_rounds: int
    num_places: int
    num_sessions: int
    divergence: Divergence | None
    facts: FileFindings

    @property
    def is_same(self) -> bool:
        """Whether neither a value nor a node differs."""
        return self.divergence is None and bool(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectReport:
    """What the search of a bundle gave.

    Attributes:
        bundle: its folder.
        precision: element type of its graph.
        fresh: the checkpoint read anew, where that is the reference; None for the bundle's module.
        searches: one for each ONNX file.
        incomparable: why the graph could not be compared with the checkpoint's module value by
            value; empty where it was.
    """

    bundle: Path
    precision: Precision
    fresh: Fresh | None
    searches: Sequence[GraphSearch]
    incomparable: str = ""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        is_other = self.fresh is not None and self.fresh.is_different
        return not is_other and all(one.is_same for one in self.searches)


def bisect_bundle(
    path: Path | str,
    *,
    checkpoint: Path | None = None,
    target: Path | None = None,
    num_rounds: int = NUM_ROUNDS,
) -> BisectReport:
    """Find the first place where a bundle's draft graph leaves its reference.

    ONNX Runtime has no bfloat16 kernels on the CPU: a bf16 graph runs as its float32 twin, beside a
    module that computes in float32 with the same rounded weights.

    Args:
        path: the bundle.
        checkpoint: drafter checkpoint whose fresh reading is the reference; None takes the module
            that the bundle itself describes.
        target: the checkpoint's target; None takes the folder the bundle was exported from.
        num_rounds: rounds of a short and of a long sequence each.

    Raises:
        BackendError: a package is missing, or ONNX Runtime refuses the graph.
        DraftrtError: bundle or checkpoint cannot be read.
    """
    bundle = Bundle.open(path, verify=Verify.ALL)
    entry = bundle.graph("draft")
    require("torch", "onnx", "onnxruntime", what="a search")
    from draftrt.export.check.reference import module_from_bundle
    from draftrt.export.manifest_graphs import compare_with_facts

    fresh = None if checkpoint is None else read_fresh(bundle, checkpoint, target)
    why = "" if fresh is None else incomparable(bundle.drafter(), fresh.spec)
    searches = []
    if not why:
        is_twin = entry.precision is Precision.BF16
        if fresh is None:
            module = module_from_bundle(bundle, is_wide=is_twin)
        else:
            module = _fresh_module(bundle, fresh, is_wide=is_twin)
        for facts in compare_with_facts(bundle, "draft"):
            searches.append(_search_file(bundle, facts, module, num_rounds))
    return BisectReport(
        bundle=bundle.path,
        precision=entry.precision,
        fresh=fresh,
        searches=searches,
        incomparable=why,
    )


def incomparable(bundle: DrafterSpec, checkpoint: DrafterSpec) -> str:
    """Say why two drafters cannot be fed the same rounds; empty where they can."""
    names = ("num_layers", "num_kv_heads", "head_dim", "feature_size", "block_size")
    wrong = [
        f"{name} {getattr(bundle, name)}, in the checkpoint {getattr(checkpoint, name)}"
        for name in (*names, "num_draft_tokens")
        if getattr(bundle, name) != getattr(checkpoint, name)
    ]
    return "; ".join(wrong)


def _fresh_module(bundle: Bundle, fresh: Fresh, *, is_wide: bool) -> Drafter:
    from draftrt.export.check.reference import reference_module
    from draftrt.export.graph.float32 import widened
    from draftrt.export.models.signature import EXTRA_OUTPUTS, SAMPLED_INPUTS

    fed = {tensor.name for tensor in bundle.graph("draft").signature.inputs}
    return reference_module(
        fresh.spec,
        {name: widened(one) for name, one in fresh.tensors.items()} if is_wide else fresh.tensors,
        extra_outputs=EXTRA_OUTPUTS,
        is_sampled=fed.issuperset(SAMPLED_INPUTS),
    )


def _search_file(
    bundle: Bundle, facts: FileFindings, module: Drafter, num_rounds: int
) -> GraphSearch:
    from draftrt.export.graph.float32 import runnable

    spec, entry, file = module.spec, bundle.graph("draft"), facts.file
    windows = [layer.window for layer in spec.layers if layer.window is not None]
    reach = min(entry.max_context, max([0, *windows]) + 2 * spec.block_size + ROOM)
    rows = entry.max_context if file == entry.file else reach
    with (
        temporary_folder("bisect") as folder,
        runnable(bundle.file(file), entry.precision, folder) as (path, precision),
    ):
        plan = plan_rounds(spec, reach, num_rounds)
        rounds = reference_rounds(module, entry, plan, rows=rows, precision=precision)
        search = Search(
            graph=Graph(path), rounds=rounds, spec=spec, precision=precision, edits=facts.nodes
        )
        divergence = search.first()
    return GraphSearch(
        file=file,
        num_rounds=len(rounds),
        num_places=len(search.places),
        num_sessions=search.marked.num_sessions,
        divergence=divergence,
        facts=facts,
    )
