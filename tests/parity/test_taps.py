"""Hidden rows and logits made visible in a graph that gives only ids: found by their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from draftrt.export.check.feeds import round_feeds
from draftrt.export.checkpoint.drafter import LoadedDrafter, load_drafter
from draftrt.export.models.signature import EXTRA_OUTPUTS
from draftrt.export.options import ExportOptions
from draftrt.export.write_graphs import write_draft_graph
from draftrt.validate.parity.inner_outputs import add_taps
from draftrt.validate.records.cases import read_case
from draftrt.validate.records.golden import case_target

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.parity

CASES = Path(__file__).resolve().parent.parent / "golden"
CONTEXT = 64


def load(name: str) -> LoadedDrafter:
    case = read_case(CASES / name)
    return load_drafter(case.draft, case_target(case))


def run(model: Path | bytes, folder: Path, loaded: LoadedDrafter) -> dict[str, Any]:
    options = ort.SessionOptions()
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(folder))
    content = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feeds = round_feeds(loaded.spec, np.random.default_rng(0), new_rows=9, context_length=0)
    caches = {
        entry.name: np.zeros(entry.shape, np.float32)
        for entry in session.get_inputs()
        if entry.name.startswith("past_")
    }
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(None, {**feeds, **caches}), strict=True))


# capped logits; a selector behind the logits; a Markov bias behind them, and drafts from a few rows
@pytest.mark.parametrize(
    "name", ["deepspec-gemma4-dspark", "zlab-dflash2", "speculators-dspark-reduced-vocab"]
)
def test_taps_are_what_an_export_with_these_outputs_gives(name: str, tmp_path: Path) -> None:
    loaded = load(name)
    found = {}
    for kind, extra in (("plain", ()), ("whole", EXTRA_OUTPUTS)):
        folder = tmp_path / kind
        folder.mkdir()
        options = ExportOptions(max_context=CONTEXT, extra_outputs=extra)
        entry = write_draft_graph(loaded, folder, options, lambda line: None)
        model, names = add_taps(folder / entry.file)
        assert names == (("hidden", "base_logits") if kind == "plain" else ())
        found[kind] = run(model, folder, loaded)
    plain, whole = found["plain"], found["whole"]
    assert np.array_equal(plain["draft_ids"], whole["draft_ids"])
    for name in ("hidden", "base_logits"):
        assert plain[name].shape == whole[name].shape
        np.testing.assert_allclose(plain[name], whole[name], rtol=1e-5, atol=1e-5)
    assert plain["base_logits"].std() > 0.1


def test_a_graph_without_the_weights_gets_no_taps(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"
    ]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    path = tmp_path / "graph.onnx"
    onnx.save(onnx.helper.make_model(graph), str(path))
    model, names = add_taps(path)
    assert names == ()
    assert onnx.load_from_string(model).graph == onnx.load(str(path)).graph
