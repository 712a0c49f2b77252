"""`draftrt validate bisect` on the way of the queries, which no cache depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from draftrt.bundle import Bundle
from draftrt.export.check.reference import module_from_bundle
from draftrt.export.graph.differences import graph_differences
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.spec import Precision
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.rounds import ReferenceRound, reference_rounds
from draftrt.validate.bisect.search import Divergence, Search
from draftrt.validate.rounds.plan import PlannedRound
from tests.parity.planted_graphs import constant, insert, reading, set_attribute
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("bisect")]
KINDS = (Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2, Kind.DEEPSPEC_DSPARK, Kind.DEEPSPEC_GEMMA4)
WAY = ("self_attn.q_proj", "self_attn.q_norm", "self_attn.query")


@dataclass(frozen=True)
class Clean:
    """A drafter's graph and what its module computes.

    Attributes:
        bundle: holds the graph.
        model: the graph.
        rounds: of the module.
    """

    bundle: Bundle
    model: Any
    rounds: list[ReferenceRound]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.value)
def clean(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("query")
    target = write_target(folder / "target", ToyTarget())
    draft = write_drafter(folder / "draft", ToyDrafter(kind=request.param))
    options = ExportOptions(max_context=48, target_graph=False)
    bundle = Bundle.open(export_bundle(draft, target, folder / "bundle", options))
    entry = bundle.graph("draft")
    sizes = [(0, 5), (5, 1), (6, 4)]
    plan = [PlannedRound(context_length=a, new_rows=b) for a, b in sizes]
    module = module_from_bundle(bundle)
    rounds = reference_rounds(module, entry, plan, rows=48, precision=entry.precision)
    model = onnx.load(str(bundle.file(entry.file)), load_external_data=False)
    return Clean(bundle, model, rounds)


def norm_of(graph: Any, layer: int) -> Any:
    return reading(graph, f"layers.{layer}.self_attn.q_norm.weight")


def other_epsilon(graph: Any, layer: int) -> str:
    node = norm_of(graph, layer)
    set_attribute(node, "epsilon", 0.1)
    return str(node.name)


def left_out(graph: Any, layer: int) -> str:
    norm = norm_of(graph, layer)
    for node in graph.node:
        node.input[:] = [norm.input[0] if x == norm.output[0] else x for x in node.input]
    name = str(norm.name)
    graph.node.remove(norm)
    return name


def other_layers_projection(graph: Any, layer: int) -> str:
    node = reading(graph, f"layers.{layer}.self_attn.q_proj.weight")
    other = f"layers.{1 - layer}.self_attn.q_proj.weight"
    node.input[:] = [other if name.endswith("q_proj.weight") else name for name in node.input]
    return str(node.name)


def heads_exchanged(graph: Any, layer: int) -> str:
    node = norm_of(graph, layer)
    order = constant(graph, np.arange(3, -1, -1))
    insert(graph, node, 0, ("Gather", ["", order], {"axis": -2}))
    return "planted_Gather_0.node"


def larger_weight(graph: Any, layer: int) -> str:
    insert(graph, norm_of(graph, layer), 1, ("Mul", ["", constant(graph, np.float32(1.2))], {}))
    return "planted_Mul_0.node"


FAULTS = (other_epsilon, left_out, other_layers_projection, heads_exchanged, larger_weight)


def found_with(clean: Clean, fault: Callable[[Any, int], str], layer: int) -> tuple[str, Any]:
    """Plant a fault in a copy beside its weights; return the guilty node's name and the search."""
    model = onnx.ModelProto()
    model.CopyFrom(clean.model)
    guilty = fault(model.graph, layer)
    path = clean.bundle.file(f"{fault.__name__}.{layer}.planted.onnx")
    onnx.save(model, str(path))
    search = Search(
        graph=Graph(path),
        rounds=clean.rounds,
        spec=clean.bundle.drafter(),
        precision=Precision.FP32,
        edits=graph_differences(model, clean.model).nodes,
    )
    return guilty, search


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
def test_a_fault_on_the_way_of_the_queries_is_named_at_its_node(
    clean: Clean, fault: Callable[[Any, int], str], layer: int
) -> None:
    guilty, search = found_with(clean, fault, layer)
    found: Divergence | None = search.first()
    assert found is not None
    assert found.node == guilty
    assert (found.place.layer, found.place.step in WAY) == (layer, True), str(found.place)
    assert "theta" not in found.usual or found.place.step == WAY[2]
    assert guilty in " ".join(found.evidence)


@pytest.mark.parametrize("clean", [Kind.ZLAB_DFLASH], indirect=True)
@pytest.mark.parametrize("fault", [other_epsilon, heads_exchanged, other_layers_projection])
def test_numbers_alone_lead_back_to_the_layers_input_and_not_to_its_caches(
    clean: Clean, fault: Callable[[Any, int], str]
) -> None:
    _, search = found_with(clean, fault, 1)
    search.edits = ()
    found = search.first()
    assert found is not None
    assert found.place.step in WAY[:2]
    assert found.node in [name for name, _ in found.nodes]


def test_a_weight_that_is_read_is_not_called_unused(clean: Clean, tmp_path: Path) -> None:
    _, search = found_with(clean, larger_weight, 1)
    found = search.first()
    assert found is not None
    assert not [line for line in found.evidence if "no node of the graph uses" in line]


@pytest.mark.parametrize("clean", [Kind.ZLAB_DFLASH], indirect=True)
@pytest.mark.parametrize(("factor", "is_seen"), [(1.0002, True), (1.000002, False)])
def test_values_ten_limits_off_are_seen_and_roundings_are_not(
    clean: Clean, factor: float, is_seen: bool
) -> None:
    def a_little(graph: Any, layer: int) -> str:
        node, by = norm_of(graph, layer), constant(graph, np.float32(factor))
        insert(graph, node, 1, ("Mul", ["", by], {}))
        return str(node.name)

    _, search = found_with(clean, a_little, 1)
    search.edits = ()
    assert (search.first() is not None) == is_seen
