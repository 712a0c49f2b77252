"""What the check of large graphs is made of: products by blocks, rows that are compared."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from draftrt.errors import CheckpointError, ExportError
from draftrt.export.check import extent, one_layer
from draftrt.export.check.extent import row_blocks
from draftrt.export.check.layer_samples import samples
from draftrt.export.check.lazy_weights import LazyWeights, Matrix
from draftrt.export.check.onnx_file import check_weights, sampled_rows
from draftrt.export.checkpoint import tensors as tensor_ref
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef, from_tensor

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ROWS, WIDTH = 37, 24


def matrix(weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    monkeypatch.setattr("draftrt.export.check.extent.BLOCK_ELEMENTS", 5 * WIDTH)
    shape = (weight.shape[0], weight.shape[1])
    return Matrix.over(lambda first, last: weight[first:last], shape, weight.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_unread_weight_multiplies_like_the_weight(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = torch.randn(ROWS, WIDTH).to(dtype), torch.randn(ROWS).to(dtype)
    x = torch.randn(3, WIDTH).to(dtype)
    unread = matrix(weight, monkeypatch)
    assert (unread.dtype, unread.shape) == (dtype, (ROWS, WIDTH))
    exact = x.double() @ weight.double().T
    for given in (None, bias):
        wanted = exact if given is None else exact + given.double()
        found = F.linear(x, unread, given)
        assert type(found) is torch.Tensor
        assert found.dtype is dtype
        assert torch.allclose(
            found.double(), wanted, rtol=0, atol=1e-5 if dtype.itemsize == 4 else 4e-3
        )


def test_an_unread_table_is_looked_up_in_and_read_whole_for_all_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.randn(ROWS, WIDTH)
    unread = matrix(weight, monkeypatch)
    ids = torch.tensor([[3, 36], [3, 0]])
    assert torch.equal(F.embedding(ids, unread), weight[ids])
    assert torch.equal(unread.float() * 2, weight * 2)


def test_unread_weights_are_those_of_one_layer_with_tables_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = {
        "layers.1.up.weight": torch.randn(ROWS, WIDTH, dtype=torch.bfloat16),
        "layers.1.norm.weight": torch.randn(WIDTH),
        "head.weight": torch.randn(ROWS, WIDTH),
        "d2t": torch.arange(ROWS),
    }
    tensors = {
        name: GraphTensor(
            name, tuple(one.shape), str(one.dtype).removeprefix("torch."), from_tensor(name, one)
        )
        for name, one in contents.items()
    }
    tensors["head.weight"] = GraphTensor(
        "head.weight", (ROWS, WIDTH), "bfloat16", tensors["head.weight"].source
    )
    cut = {name: (name, 5, 17) for name in ("head.weight", "d2t")}
    unread = LazyWeights(tensors, 1, cut=cut)
    x = torch.randn(2, WIDTH)
    up = F.linear(x, unread.get_parameter("layers.0.up.weight"))
    assert torch.allclose(up, x @ contents["layers.1.up.weight"].float().T, atol=1e-5)
    head = contents["head.weight"].to(torch.bfloat16).float()[5:17]
    assert torch.allclose(F.linear(x, unread.get_parameter("head.weight")), x @ head.T, atol=1e-5)
    assert unread.get_parameter("d2t").tolist() == list(range(5, 17))
    norm = unread.get_parameter("layers.0.norm.weight")
    assert torch.equal(norm, contents["layers.1.norm.weight"])
    with pytest.raises(AttributeError):
        unread.get_parameter("layers.0.down.weight")


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_by_blocks_is_the_product(
    kind: str, has_bias: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extent, "BLOCK_ELEMENTS", 5 * WIDTH)
    number = onnx.TensorProto.DataType.Value(kind)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    rng = np.random.default_rng(1)
    weight, bias, x = (
        rng.standard_normal(shape).astype(dtype) for shape in ((ROWS, WIDTH), ROWS, (3, WIDTH))
    )
    (tmp_path / "data").write_bytes(b"before!!" + weight.tobytes() + bias.tobytes())
    weights = {}
    for name, array, offset in (("w", weight, 8), ("b", bias, 8 + weight.nbytes)):
        tensor = onnx.TensorProto(name=name, data_type=number, dims=array.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = {"location": "data", "offset": str(offset), "length": str(array.nbytes)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        weights[name] = tensor
    inputs = ["x", "w", "b"] if has_bias else ["x", "w"]
    nodes = [
        onnx.helper.make_node("Cast", ["wide"], ["x"], "narrowing", to=number),
        onnx.helper.make_node("Gemm", inputs, ["y"], "product", transB=1),
        onnx.helper.make_node("Cast", ["y"], ["out"], "widening", to=onnx.TensorProto.FLOAT),
    ]
    nodes = one_layer.split_products(nodes, weights)
    assert [node.op_type for node in nodes].count("Gemm") == 8  # 7 of 5 rows, one of 2
    nodes = one_layer.widen(nodes, weights)
    used = {name for node in nodes for name in node.input}
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in ("wide", "out")
    ]
    initialisers = [tensor for name, tensor in weights.items() if name in used]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], initialisers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, str(tmp_path / "g.onnx"))
    session = ort.InferenceSession(str(tmp_path / "g.onnx"), providers=["CPUExecutionProvider"])
    wide = x.astype(np.float32)
    (found,) = session.run(None, {"wide": wide})
    wanted = wide.astype(np.float64) @ weight.astype(np.float64).T
    wanted += bias.astype(np.float64) if has_bias else 0
    assert np.abs(found - wanted).max() < (1e-5 if kind == "BFLOAT16" else 1e-2)


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (2, 8), (5, 8), (1000, 8), (7, 10_000)])
def test_rows_that_are_compared_are_spread_over_all(rows: int, width: int) -> None:
    found = sampled_rows(rows, width, every=800)
    assert (found[0], found[-1]) == (0, rows - 1)
    assert len(found) >= min(rows, 3)
    for before, after in pairwise(found):
        assert after == before + 1 or (after - before) * width < 2 * 800 or len(found) == 3


def test_each_kind_of_layer_gets_each_round_and_each_end_of_the_vocabulary() -> None:
    kinds = ["slides", "slides", "sees all", "slides", "slides"]
    found = samples(kinds, [(0, 1), (90, 2)], 10_001)
    assert [(one.layer, one.length, one.count) for one in found] == [
        (0, 0, 1),
        (4, 90, 2),
        (2, 0, 1),
        (2, 90, 2),
    ]
    blocks = [str(block) for block in row_blocks(10_001)]
    assert blocks == ["0..2047", "7953..10000"]
    assert [str(one.block) for one in found] == 2 * blocks
    assert {str(block) for block in row_blocks(100)} == {"0..99"}


def graph_with(weight: np.ndarray[tuple[int, ...], np.dtype[np.float32]], path: Path) -> Path:
    """A file whose one weight lies in ``data``."""
    (path / "data").write_bytes(weight.tobytes())
    tensor = onnx.numpy_helper.from_array(weight, "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["w"], ["y"])], "g", [], [], [tensor]
    )
    onnx.external_data_helper.set_external_data(tensor, "data", 0, weight.nbytes)
    del graph.initializer[:]
    tensor.ClearField("raw_data")
    graph.initializer.append(tensor)
    onnx.save(onnx.helper.make_model(graph), str(path / "g.onnx"))
    return path / "g.onnx"


def test_a_slice_of_a_copied_weight_that_is_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftrt.export.check.onnx_file.ROW_EVERY", 1 << 12)
    weight = np.random.default_rng(2).standard_normal((1000, 64)).astype(np.float32)
    source = {
        "w": GraphTensor("w", weight.shape, "float32", from_tensor("w", torch.tensor(weight)))
    }
    assert check_weights(graph_with(weight, tmp_path), source) == 1
    for start in (0, 240, 480, 720, 960):
        wrong = weight.copy()
        wrong[start : start + 40] = 0
        with pytest.raises(ExportError, match=r"w: row \d+ has other content"):
            check_weights(graph_with(wrong, tmp_path), source)
    half = GraphTensor("w", weight.shape, "float16", source["w"].source)
    with pytest.raises(ExportError, match="w: has type FLOAT, expected float16"):
        check_weights(graph_with(weight, tmp_path), {"w": half})


def test_a_linked_weight_is_compared_by_its_place(tmp_path: Path) -> None:
    weight = np.ones((40, 64), np.float32)
    path = graph_with(weight, tmp_path)
    ref = TensorRef("w", "float32", weight.shape, tmp_path / "data", 0)
    assert check_weights(path, {"w": GraphTensor("w", weight.shape, "float32", ref)}) == 1
    other = TensorRef("w", "float32", weight.shape, tmp_path / "data", 4)
    with pytest.raises(ExportError, match="w: lies at 0, expected 4"):
        check_weights(path, {"w": GraphTensor("w", weight.shape, "float32", other)})


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    ref = TensorRef("w", "float32", (8, 4), tmp_path / "data", 4)
    assert ref.num_bytes < tensor_ref.READ_BYTES
    with pytest.raises(CheckpointError, match="'w' ends 32 bytes early") as refusal:
        ref.read()
    assert "export again" in refusal.value.hint
