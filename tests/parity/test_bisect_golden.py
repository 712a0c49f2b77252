"""No false alarm: recorded drafters agree with their modules at every place and precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.options import ExportOptions
from draftrt.export.weights.tensors import draft_tensors
from draftrt.export.write_graphs import write_draft_graph
from draftrt.spec import Precision, Profile
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.rounds import reference_rounds
from draftrt.validate.bisect.search import Search
from draftrt.validate.records.cases import read_case
from draftrt.validate.records.golden import case_target
from draftrt.validate.rounds.plan import PlannedRound

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("bisect")]

CASES = Path(__file__).resolve().parent.parent / "golden"
ROWS = 64
FEW = (("zlab-dflash2", Precision.FP16), ("deepspec-gemma4-dspark", Precision.FP32))
ALL = [
    (folder.parent.name, precision)
    for folder in sorted(CASES.glob("*/case.json"))
    for precision in (Precision.FP32, Precision.FP16)
]


def check(folder: Path, name: str, precision: Precision, profile: Profile) -> None:
    case = read_case(CASES / name)
    loaded = load_drafter(case.draft, case_target(case))
    options = ExportOptions(precision=precision, max_context=ROWS, profile=profile)
    entry = write_draft_graph(loaded, folder, options, lambda line: None)
    tensors = draft_tensors(loaded.spec, loaded.tensors, precision, ROWS)
    module = reference_module(loaded.spec, tensors)
    room = ROWS - loaded.spec.block_size
    sizes = [(0, 5), (5, 1), (6, 3), (9, room - 9)]
    plan = [PlannedRound(context_length=a, new_rows=b) for a, b in sizes]
    rounds = reference_rounds(module, entry, plan, rows=ROWS, precision=precision)
    for file in (entry.file, entry.flexible):
        graph = Graph(folder / file)
        search = Search(graph=graph, rounds=rounds, spec=loaded.spec, precision=precision)
        found = search.first()
        assert found is None, (str(found.place), found.problem)
        gaps = search.gaps_at(range(len(search.places)))
        assert [str(search.places[i]) for i, gap in gaps.items() if not gap] == []
        layers = {place.layer for place in search.places}
        assert set(range(loaded.spec.num_layers)) <= layers
        assert len(search.places) > 20 * loaded.spec.num_layers


@pytest.mark.parametrize(("name", "precision"), FEW, ids=[f"{n}-{p.value}" for n, p in FEW])
def test_a_recorded_drafter_is_clean(tmp_path: Path, name: str, precision: Precision) -> None:
    check(tmp_path, name, precision, Profile.FIXED)


@pytest.mark.extended
@pytest.mark.parametrize(("name", "precision"), ALL, ids=[f"{n}-{p.value}" for n, p in ALL])
def test_every_recorded_drafter_is_clean(tmp_path: Path, name: str, precision: Precision) -> None:
    check(tmp_path, name, precision, Profile.FIXED)


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted({name for name, _ in ALL}))
def test_every_recorded_drafter_is_clean_in_the_older_operators(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, Precision.FP32, Profile.COMPAT)
