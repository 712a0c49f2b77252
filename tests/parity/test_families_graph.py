"""A few of the same drafters through the exported graph on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.options import ExportOptions
from draftrt.export.write_graphs import write_draft_graph
from draftrt.spec import Profile
from tests.parity.family_checkpoints import make_case
from tests.parity.family_rounds import OUTPUTS, compare_rounds
from tests.parity.family_rows import Row

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.extended]
CONTEXT = 48
# Golden cases go through the fixed profile; these add what none of them has.
GRAPHS: tuple[tuple[Profile, Row], ...] = (
    (
        Profile.COMPAT,
        ("dflash2", "window below the block, both ways", "dynamic", "padded", "scaled and capped"),
    ),
    (
        Profile.COMPAT,
        ("gemma4, vanilla", "every layer causal", "proportional", "own", "scaled and capped"),
    ),
    (
        Profile.FIXED,
        (
            "dspark, speculators, rnn, fill-in",
            "sliding and full",
            "longrope",
            "reduced by absolute ids",
            "as they are",
        ),
    ),
    (
        Profile.FIXED,
        (
            "dflash from the anchor",
            "use_swa with sinks and value scale",
            "interleaved",
            "mask embedding",
            "as they are",
        ),
    ),
)


class Session:
    """The graph on ONNX Runtime, carrying its caches from round to round."""

    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._caches = {
            entry.name: np.zeros(entry.shape, np.float32)
            for entry in self._session.get_inputs()
            if entry.name.startswith("past_")
        }

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        names = [entry.name for entry in self._session.get_outputs()]
        got = dict(zip(names, self._session.run(None, {**feeds, **self._caches}), strict=True))
        self._caches = {
            name.replace("present_", "past_"): value
            for name, value in got.items()
            if name.startswith("present_")
        }
        return got


@pytest.mark.parametrize(
    ("profile", "row"), GRAPHS, ids=lambda value: getattr(value, "value", value and value[0])
)
def test_a_graph_computes_what_the_slow_drafter_does(
    profile: Profile,
    row: Row,
    tmp_path: Path,
    toy_target: TargetCheckpoint,
    toy_tables: dict[str, Any],
) -> None:
    case = make_case(row, tmp_path / "draft", toy_target, toy_tables)
    loaded = load_drafter(case.folder, case.target)
    options = ExportOptions(profile=profile, extra_outputs=OUTPUTS, max_context=CONTEXT)
    entry = write_draft_graph(loaded, tmp_path, options, lambda line: None)
    compare_rounds(case, Session(tmp_path / entry.file).run, seed=len(row[0]))
