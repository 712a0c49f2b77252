"""A target answers for the rows it is asked about: its module, its table, and the gate.

transformers is the oracle; the graph itself is compared with it in tests/parity.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftrt.bundle import Bundle
from draftrt.errors import ExportError
from draftrt.export.check.target import check_target, check_target_sampled
from draftrt.export.checkpoint.decoder import read_decoder
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.signature import target_signature
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.export.weights.tensors import target_tensors
from draftrt.signature import DimRange
from draftrt.spec import DecoderSpec, Precision, Profile

transformers = pytest.importorskip("transformers")

CONTEXT, COUNT = 48, 30
TAPS = (0, 2)


@pytest.fixture(scope="module")
def spec(target: TargetCheckpoint) -> DecoderSpec:
    return read_decoder(target)


@pytest.fixture(scope="module")
def tensors(spec: DecoderSpec, target_folder: Path) -> Any:
    return target_tensors(spec, target_folder, Precision.FP32, CONTEXT)


@pytest.fixture(scope="module")
def bundle(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("rows") / "bundle"
    return Bundle.open(export_bundle(None, target_folder, out, ExportOptions(max_context=CONTEXT)))


@pytest.mark.parametrize(
    "rows",
    [[COUNT - 1], [*range(COUNT)], [17, 3, 29, 4], [8, 8, 0, 29, 8]],
    ids=["the last", "all", "some in any order", "some twice"],
)
def test_logits_are_those_of_the_rows_asked_for(
    rows: list[int], spec: DecoderSpec, tensors: Any, target_folder: Path
) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(target_folder).eval()
    ours = Decoder(spec, {name: one.read() for name, one in tensors.items()}, taps=TAPS)
    ids = torch.from_numpy(np.random.default_rng(2).integers(0, spec.vocab_size, (1, COUNT)))
    caches = [
        torch.zeros(1, groups, CONTEXT, dim)
        for groups, dim in map(spec.cache_shape, range(spec.num_layers))
        for _ in range(2)
    ]
    with torch.no_grad():
        expected = theirs(ids, use_cache=False, output_hidden_states=True)
        found = ours(ids, torch.tensor([0]), torch.tensor(rows), *caches)
    logits = expected.logits[0, rows]
    torch.testing.assert_close(found[1][0], logits, atol=1e-4, rtol=0)
    assert found[0].tolist() == [logits.argmax(-1).tolist()]
    states = torch.cat([expected.hidden_states[tap + 1] for tap in TAPS], dim=-1)
    torch.testing.assert_close(found[2], states, atol=1e-4, rtol=1e-4)  # of all rows


@pytest.mark.parametrize(
    ("context", "fed", "asked"),
    [
        (5, DimRange(min=1, opt=5, max=5), DimRange(min=1, opt=5, max=5)),
        (100, DimRange(min=1, opt=8, max=100), DimRange(min=1, opt=8, max=64)),
        (4096, DimRange(min=1, opt=8, max=256), DimRange(min=1, opt=8, max=64)),
    ],
)
def test_a_graph_answers_for_a_block_at_most(
    context: int, fed: DimRange, asked: DimRange, spec: DecoderSpec
) -> None:
    table = target_signature(spec, TAPS, Precision.FP32, context)
    assert table.dimensions == {"R": fed, "S": asked}
    assert table.input("logit_rows").shape == ("S",)
    shapes = {tensor.name: tensor.shape for tensor in table.outputs if not tensor.alias}
    assert shapes == {
        "next_ids": (1, "S"),
        "logits": (1, "S", spec.vocab_size),
        "features": (1, "R", 2 * spec.hidden_size),
    }


def first_row(model: Any, onnx: Any) -> Any:
    """The first row is answered for, whichever is asked for."""
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "zero")
    model.graph.initializer.append(zero)
    return [onnx.helper.make_node("Mul", ["logit_rows", "zero"], ["rows"])]


def other_order(model: Any, onnx: Any) -> Any:
    """The rows asked for are answered in ascending order."""
    length = onnx.helper.make_node("Shape", ["logit_rows"], ["length"])
    sort = onnx.helper.make_node(
        "TopK", ["logit_rows", "length"], ["rows", "places"], largest=0, sorted=1
    )
    return [length, sort]


def one_before(model: Any, onnx: Any) -> Any:
    """The row before is answered for, which for row 0 is the last."""
    one = onnx.numpy_helper.from_array(np.ones(1, np.int64), "one")
    model.graph.initializer.append(one)
    return [onnx.helper.make_node("Sub", ["logit_rows", "one"], ["rows"])]


@pytest.mark.parametrize("fault", [first_row, other_order, one_before])
def test_a_graph_that_answers_for_other_rows_is_refused(
    fault: Callable[[Any, Any], Any], bundle: Bundle, spec: DecoderSpec, tensors: Any
) -> None:
    import onnx

    path = bundle.file("target.onnx")
    model = onnx.load(str(path), load_external_data=False)
    gather = next(node for node in model.graph.node if "logit_rows" in node.input)
    place = list(model.graph.node).index(gather)
    gather.input[1] = "rows"
    for node in reversed(fault(model, onnx)):
        model.graph.node.insert(place, node)
    wrong = path.with_name("wrong.onnx")
    onnx.save(model, str(wrong))
    try:
        with pytest.raises(ExportError, match="logits differs by"):
            check_target(wrong, spec, tensors, (), Precision.FP32, Profile.FIXED, CONTEXT)
        with pytest.raises(ExportError, match="logits differs by"):
            check_target_sampled(wrong, spec, tensors, (), Precision.FP32, CONTEXT)
    finally:
        wrong.unlink()
