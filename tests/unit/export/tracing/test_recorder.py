"""Modules to graphs: what is recorded computes the same on ONNX Runtime, at other sizes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.errors import ExportError
from draftrt.export.graph.layers import plan_layers
from draftrt.export.tracing.trace import trace
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import Profile

ort = pytest.importorskip("onnxruntime")


class Module(nn.Module):
    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        out = self._compute(*inputs)
        return out if isinstance(out, tuple) else (out,)


def record(compute: Callable[..., Any], num_outputs: int, profile: Profile = Profile.FIXED) -> Any:
    """Record a function of x [R, 6] float32 and i [3] int64."""
    signature = Signature(
        inputs=(
            TensorSpec(name="x", dtype="float32", shape=("R", 6)),
            TensorSpec(name="i", dtype="int64", shape=(3,)),
        ),
        outputs=tuple(
            TensorSpec(name=f"y{k}", dtype="float32", shape=()) for k in range(num_outputs)
        ),
        dimensions={"R": DimRange(min=1, opt=4, max=90)},
    )
    model = trace(Module(compute), signature, profile)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def agrees(compute: Callable[..., Any], num_outputs: int = 1) -> None:
    rng = np.random.default_rng(0)
    for profile in Profile:
        model = record(compute, num_outputs, profile)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [item.name for item in session.get_inputs()]
        for rows in (1, 4, 9):
            x = rng.standard_normal((rows, 6)).astype(np.float32)
            i = rng.integers(0, 3, 3)
            want = Module(compute)(torch.from_numpy(x), torch.from_numpy(i))
            got = session.run(None, {name: {"x": x, "i": i}[name] for name in names})
            for a, b in zip(want, got, strict=True):
                assert a.numpy().shape == b.shape
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


CASES: dict[str, Callable[..., Any]] = {
    "slices, single entries and new axes": lambda x, i: x[:, None, 1:4] * x[:1, 2],
    "negative ends": lambda x, i: torch.cat((x[:, -2:], x[:, :-2]), dim=-1),
    "an ellipsis": lambda x, i: x[..., 2:] - x[..., :4],
    "joined rows": lambda x, i: torch.cat((x, x + 1)).reshape(-1, 2, 3).transpose(0, 1),
    "open sizes in shapes": lambda x, i: x.reshape(1, x.shape[0], 6).expand(2, x.shape[0], 6),
    "arithmetic on open sizes": lambda x, i: torch.cat((x, x)).reshape(2 * x.shape[0], 6),
    "positions": lambda x, i: (torch.arange(x.shape[0] + 2) + i[:1]).float(),
    "counted from the last": lambda x, i: (torch.arange(x.shape[0]) - x.shape[0]).float(),
    "numbers on either side": lambda x, i: 1 - 2.5 * x / 3.0 + torch.full((6,), 7.0),
    "tables": lambda x, i: F.embedding(i, x[:1].reshape(3, 2)).flatten(),
    "choices": lambda x, i: torch.where(x > 0, x, torch.zeros_like(x)),
    "masks": lambda x, i: x.masked_fill(~((x <= 0.5) & (x >= -0.5)), -4.0),
    "equal ids": lambda x, i: (i == 2).float() + (i < 1).float(),
    "softmax and sums": lambda x, i: torch.softmax(x, dim=-1) * x.sum(dim=-1)[:, None],
    "norm": lambda x, i: F.rms_norm(x, (6,), None, 1e-6),
    "activations": lambda x, i: F.silu(x) + F.gelu(x) + torch.tanh(x) + torch.sigmoid(x),
    "thirds": lambda x, i: torch.stack(x.chunk(3, dim=-1), dim=1).flatten(-2),
    "the same value twice": lambda x, i: (x * 2, x * 2),
    "an input": lambda x, i: x,
    "types": lambda x, i: (x.to(torch.float16).float() + i[:1]).float(),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_function_computes_the_same(name: str) -> None:
    compute = CASES[name]
    agrees(compute, 2 if name == "the same value twice" else 1)


def test_a_long_count_is_no_constant() -> None:
    count = 5000
    model = record(lambda x, i: torch.arange(count) + i[:1], 1)
    assert sorted(node.op_type for node in model.graph.node) == ["Add", "Range", "Slice"]
    assert sum(len(tensor.raw_data) for tensor in model.graph.initializer) < 200
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((1, 6), np.float32), "i": np.array([7, 0, 0])}
    (got,) = session.run(None, feeds)
    assert (got == np.arange(count) + 7).all()


def test_ids_come_out_as_integers() -> None:
    model = record(lambda x, i: torch.topk(x, 2, dim=-1)[1], 1)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    (ids,) = session.run(None, {"x": x, "i": np.zeros(3, np.int64)})
    assert (ids == np.argsort(-x, axis=-1)[:, :2]).all()


@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (lambda x, i: x if x.shape[0] == 4 else x + 1, "decides something by an open size"),
        (lambda x, i: x[-x.shape[0] :], "decides something by an open size"),
        (lambda x, i: x[: x.shape[0] // 2], "decides something by an open size"),
        (lambda x, i: torch.cumsum(x, 0), "torch.cumsum has no ONNX form in draftrt"),
        (lambda x, i: x[:, ::2], "no ONNX form"),
        (lambda x, i: x[i], "no ONNX form"),
        (lambda x, i: (x, x), "returned 2 values"),
    ],
    ids=[
        "a branch",
        "a negative size",
        "half a size",
        "an unknown function",
        "steps",
        "indices",
        "outputs",
    ],
)
def test_what_a_graph_cannot_follow_is_refused(compute: Callable[..., Any], says: str) -> None:
    with pytest.raises(ExportError, match=says) as caught:
        record(compute, 1)
    assert caught.value.exit_code == 1


def test_one_layer_of_each_kind_is_recorded_and_the_last() -> None:
    plan = plan_layers(["slides"] * 4 + ["full"] + ["slides"] * 3)
    assert plan.traced == (0, 4, 7)
    assert plan.source == (0, 0, 0, 0, 1, 0, 0, 2)
    assert plan_layers(["full"]).traced == (0,)
    assert plan.name_in_model("model.layers.2.mlp.up_proj.weight").startswith("model.layers.7.")
