"""The form of attention that is written for ONNX Runtime, against attention in plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import ExportError
from draftrt.export.graph.attention import group_attention

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

GROUPS, DIM, ROWS = 2, 8, 12
Floats = NDArray[np.float32]


def write(path: Path, heads: int, masked_by: str, **attributes: Any) -> Path:
    """Write two Attention nodes in a row, over one cache."""
    info, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    kinds = onnx.TensorProto
    inputs = [
        info("q", kinds.FLOAT, [1, heads, "R", DIM]),
        *(info(name, kinds.FLOAT, [1, GROUPS, "L", DIM]) for name in ("k", "v")),
        info("valid", kinds.INT64, [1])
        if masked_by == "valid"
        else info("mask", kinds.BOOL, [1, 1, "R", "L"]),
    ]
    by = ["", "", "", "valid"] if masked_by == "valid" else ["mask"]
    nodes = [
        node("Attention", ["q", "k", "v", *by], ["x"], scale=0.5, **attributes),
        node("Attention", ["x", "k", "v", *by], ["y"], scale=0.25, **attributes),
    ]
    outputs = [info("y", kinds.FLOAT, [1, heads, "R", DIM])]
    graph = onnx.helper.make_graph(nodes, "two", inputs, outputs)
    graph.value_info.append(info("x", kinds.FLOAT, [1, heads, "R", DIM]))
    opset = [onnx.helper.make_opsetid("", 24)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=11), str(path))
    return path


def attend(q: Floats, k: Floats, v: Floats, sees: NDArray[np.bool_], scale: float) -> Floats:
    """Attention head by head and row by row."""
    out = np.zeros_like(q)
    heads = q.shape[1]
    for head in range(heads):
        group = head // (heads // GROUPS)
        for row in range(q.shape[2]):
            keys, values = k[0, group][sees[row]], v[0, group][sees[row]]
            scores = scale * keys @ q[0, head, row]
            shares = np.exp(scores - scores.max())
            out[0, head, row] = shares @ values / shares.sum()
    return out


@pytest.mark.parametrize("heads", [2, 6], ids=["a head each", "three heads a group"])
@pytest.mark.parametrize("masked_by", ["valid", "valid, causal", "mask"])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_the_rewritten_graph_computes_attention(
    tmp_path: Path, heads: int, masked_by: str, num_rows: int
) -> None:
    kind, _, causal = masked_by.partition(", ")
    path = write(tmp_path / "two.onnx", heads, kind, **({"is_causal": 1} if causal else {}))
    group_attention(path)
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    attention = [node for node in model.graph.node if node.op_type == "Attention"]
    assert len({node.input[3] for node in attention}) == 1, "one mask serves both"
    rng = np.random.default_rng(heads)
    q, k, v = (
        rng.normal(size=(1, count, size, DIM)).astype(np.float32)
        for count, size in ((heads, num_rows), (GROUPS, ROWS), (GROUPS, ROWS))
    )
    valid = 9
    sees = np.tile(np.arange(ROWS) < valid, (num_rows, 1))
    if causal:
        sees = np.arange(ROWS) <= valid - num_rows + np.arange(num_rows)[:, None]
    if kind == "mask":
        sees = rng.random((num_rows, ROWS)) < 0.5
        sees[:, 0] = True
    how = {"valid": np.array([valid])} if kind == "valid" else {"mask": sees[None, None]}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"q": q, "k": k, "v": v, **how})
    expected = attend(attend(q, k, v, sees, 0.5), k, v, sees, 0.25)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_form_that_draftrt_does_not_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "two.onnx", 2, "valid", softcap=30.0)
    with pytest.raises(ExportError, match=r"\['scale', 'softcap'\].*expected 4 axes and a mask"):
        group_attention(path)
