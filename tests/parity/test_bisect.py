"""`draftrt validate bisect`: planted faults are named, and clean graphs are the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.export.check.reference import module_from_bundle
from draftrt.export.graph.differences import graph_differences
from draftrt.export.models.signature import EXTRA_OUTPUTS
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.spec import Precision
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.rounds import ReferenceRound, reference_rounds
from draftrt.validate.bisect.search import Search
from draftrt.validate.rounds.plan import PlannedRound
from tests.parity.planted_graphs import PLANTS, Change, Plant
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("bisect")]

# Square projections, four layers, every second one sliding, a reduced vocabulary, a Markov head.
TOY = ToyDrafter(
    kind=Kind.SPECULATORS_DSPARK,
    hidden_size=64,
    num_layers=4,
    draft_vocab_size=96,
    sliding_window=6,
    markov_type="gated",
)
TARGET = ToyTarget(hidden_size=64)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a draft checkpoint and the bundle made of them."""
    made = tmp_path_factory.mktemp("bisect")
    target = write_target(made / "target", TARGET)
    draft = write_drafter(made / "draft", TOY)
    options = ExportOptions(max_context=64, target_graph=False)
    export_bundle(draft, target, made / "bundle", options)
    return made


@pytest.fixture(scope="session")
def bundle(folder: Path) -> Bundle:
    return Bundle.open(folder / "bundle")


@pytest.fixture(scope="session")
def rounds(bundle: Bundle) -> list[ReferenceRound]:
    module, entry = module_from_bundle(bundle), bundle.graph("draft")
    sizes = [(0, 5), (5, 1), (6, 4), (10, 30)]
    plan = [PlannedRound(context_length=a, new_rows=b) for a, b in sizes]
    return reference_rounds(module, entry, plan, rows=64, precision=entry.precision)


def search(bundle: Bundle, rounds: list[ReferenceRound], file: str, change: Change) -> Search:
    """Search a copy of a graph, beside its data, with a fault in it."""
    model = onnx.load(str(bundle.file(file)), load_external_data=False)
    change(model.graph)
    path = bundle.file(f"{change.__name__}.planted.onnx")
    onnx.save(model, str(path))
    clean = onnx.load(str(bundle.file(file)), load_external_data=False)
    return Search(
        graph=Graph(path),
        rounds=rounds,
        spec=bundle.drafter(),
        precision=Precision.FP32,
        edits=graph_differences(model, clean).nodes,
    )


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_fault_is_named(
    bundle: Bundle, rounds: list[ReferenceRound], plant: Plant
) -> None:
    one = search(bundle, rounds, "draft.onnx", plant.change)
    found = one.first()
    assert found is not None
    assert (str(found.place), found.op) == (plant.place, plant.op)
    assert plant.evidence in " ".join([found.problem, *found.evidence])
    assert found.before < found.allowed < found.after
    assert found.usual
    assert one.marked.num_sessions == 2


@pytest.mark.parametrize("file", ["draft.onnx", "draft.flexible.onnx"])
def test_a_clean_graph_is_the_same_at_every_place(
    bundle: Bundle, rounds: list[ReferenceRound], file: str
) -> None:
    def nothing(graph: object) -> None:
        """Change nothing."""

    one = search(bundle, rounds, file, nothing)
    assert one.first() is None
    every = one.gaps_at(range(len(one.places)))  # not only the coarse ones
    assert [str(one.places[i]) for i, gap in every.items() if not gap] == []
    lost = {str(place) for place in rounds[0].values if place not in one.values}
    assert lost <= {*EXTRA_OUTPUTS, "lm_head.output"}  # the head's own result, unchanged
    kinds = {place.step for place in one.places if place.layer == 3}
    assert {f"self_attn.{name}" for name in ("query", "keys", "values", "attention")} <= kinds


def bisect(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["validate", "bisect", *map(str, arguments)])


def test_the_command_finds_nothing_in_a_clean_bundle(folder: Path) -> None:
    done = bisect(folder / "bundle", "--checkpoint", folder / "draft")
    assert done.exit_code == 0, done.output
    assert "facts and weights are the checkpoint's" in done.stdout
    assert "draft.onnx: same (" in done.stdout
    assert "draft.flexible.onnx: same (" in done.stdout


def spoilt(folder: Path, name: str, change: Change) -> Path:
    copy = Path(shutil.copytree(folder / "bundle", folder / name))
    model = onnx.load(str(copy / "draft.onnx"), load_external_data=False)
    change(model.graph)
    onnx.save(model, str(copy / "draft.onnx"))
    write_manifest(copy, replace(read_manifest(copy), files=hash_files(copy)))
    return copy


def test_the_command_names_layer_and_node_of_a_planted_fault(folder: Path) -> None:
    plant = PLANTS[0]
    done = bisect(spoilt(folder, "planted", plant.change))
    assert done.exit_code == 3, done.output
    assert "leaves the reference at layers.3.self_attn.query" in done.stdout
    assert "(RotaryEmbedding)" in done.stdout
    assert "rotated as interleaved" in done.stdout
    assert "draft.flexible.onnx: same (" in done.stdout
    assert "the graph is not its reference" in done.stderr
    done = bisect(folder / "planted", "--json")
    assert done.exit_code == 3
    first, second = json.loads(done.stdout)["graphs"]
    found = first["divergence"]
    assert (found["layer"], found["step"], found["op"]) == (3, "self_attn.query", "RotaryEmbedding")
    assert found["error_before"] < found["allowed"] < found["error"]
    assert second["divergence"] is None


def test_shuffled_weights_are_found_against_the_checkpoint_alone(folder: Path) -> None:
    copy = Path(shutil.copytree(folder / "bundle", folder / "shuffled"))
    model = onnx.load(str(copy / "draft.onnx"), load_external_data=False)
    name = "layers.2.mlp.up_proj.weight"
    (weight,) = [one for one in model.graph.initializer if one.name == name]
    place = {item.key: item.value for item in weight.external_data}
    shape = tuple(weight.dims)
    data = np.memmap(copy / place["location"], np.float32, "r+", int(place["offset"]), shape)
    data[:] = np.random.default_rng(0).permutation(np.array(data))
    data.flush()
    del data
    write_manifest(copy, replace(read_manifest(copy), files=hash_files(copy)))
    assert bisect(copy).exit_code == 0  # with itself the bundle agrees
    done = bisect(copy, "--checkpoint", folder / "draft")
    assert done.exit_code == 3, done.output
    assert f"weight {name}: rows in another order" in done.stdout
    assert "leaves the reference at layers.2.mlp.up_proj" in done.stdout


def test_a_wrong_fact_is_found_against_the_checkpoint_alone(folder: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    draft = write_drafter(tmp_path / "draft", replace(TOY, rope=rope))
    done = bisect(folder / "bundle", "--checkpoint", draft, "--target", folder / "target")
    assert done.exit_code == 3, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["rope.theta", "10000.0", "500000.0"] in lines
    assert "leaves the reference at rope.cos.rows" in done.stdout


def test_a_checkpoint_with_another_block_is_told_and_not_compared(
    folder: Path, tmp_path: Path
) -> None:
    draft = write_drafter(tmp_path / "draft", replace(TOY, block_size=5))
    done = bisect(folder / "bundle", "--checkpoint", draft, "--target", folder / "target")
    assert done.exit_code == 3, done.output
    assert "not compared value by value: block_size 4, in the checkpoint 5" in done.stdout


def test_a_bf16_graph_is_searched_as_its_float32_twin(folder: Path) -> None:
    options = ExportOptions(max_context=64, target_graph=False, precision=Precision.BF16)
    export_bundle(folder / "draft", folder / "target", folder / "bf16", options)
    done = bisect(folder / "bf16", "--checkpoint", folder / "draft")
    assert done.exit_code == 0, done.output
    assert "bf16 graph, as its float32 twin against pytorch" in done.stdout
    model = onnx.load(str(folder / "bf16" / "draft.onnx"), load_external_data=False)
    PLANTS[0].change(model.graph)
    onnx.save(model, str(folder / "bf16" / "draft.onnx"))
    manifest = read_manifest(folder / "bf16")
    write_manifest(folder / "bf16", replace(manifest, files=hash_files(folder / "bf16")))
    done = bisect(folder / "bf16")
    assert done.exit_code == 3, done.output
    assert "leaves the reference at layers.3.self_attn.query" in done.stdout


def test_wrong_usage_is_refused(folder: Path) -> None:
    assert bisect(folder / "bundle", "--target", folder / "target").exit_code == 2
    done = bisect(folder / "target")
    assert done.exit_code == 1
    assert "no manifest.json there" in done.stderr
