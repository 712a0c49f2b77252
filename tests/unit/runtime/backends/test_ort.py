"""ONNX Runtime on a small real drafter graph: in place, checked, and equal to plain NumPy.

The graph is the contract's shape in miniature: context features and block rows are projected
together, written with one TensorScatter, and attended over the valid length. The reference
recomputes every round from all features, without a cache.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import BackendError, BundleError, FeedError
from draftrt.runtime.backends.ort import OrtSession
from draftrt.signature import DimRange, Signature, TensorSpec

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

VOCAB, HIDDEN, WIDTH, BLOCK, CAPACITY, MASK = 17, 8, 6, 4, 24, 2
LARGE = 600  # rows of the caches where they may grow
Floats = NDArray[np.float32]


def make_weights() -> dict[str, Floats]:
    rng = np.random.default_rng(11)
    shapes = {
        "embed": (VOCAB, HIDDEN),
        "fc": (WIDTH, HIDDEN),
        "q": (HIDDEN, HIDDEN),
        "k": (HIDDEN, HIDDEN),
        "v": (HIDDEN, HIDDEN),
        "head": (HIDDEN, VOCAB),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def signature(capacity: int = CAPACITY) -> Signature:
    cache = (1, 1, capacity, HIDDEN)
    return Signature(
        inputs=(
            TensorSpec(name="anchor", dtype="int64", shape=(1,)),
            TensorSpec(name="target_hidden", dtype="float32", shape=(1, "T", WIDTH)),
            TensorSpec(name="context_length", dtype="int64", shape=(1,)),
            TensorSpec(name="past_key_0", dtype="float32", shape=cache),
            TensorSpec(name="past_value_0", dtype="float32", shape=cache),
        ),
        outputs=(
            TensorSpec(name="draft_ids", dtype="int64", shape=(1, BLOCK)),
            TensorSpec(name="fused", dtype="float32", shape=("T", HIDDEN)),
            TensorSpec(name="present_key_0", dtype="float32", shape=cache, alias="past_key_0"),
            TensorSpec(name="present_value_0", dtype="float32", shape=cache, alias="past_value_0"),
        ),
        dimensions={"T": DimRange(min=1, opt=2, max=capacity - BLOCK)},
    )


def make_nodes() -> list[Any]:
    """The drafter's operators, opset 24."""
    node = onnx.helper.make_node
    nodes = [
        node("Squeeze", ["target_hidden", "zero"], ["features"]),
        node("MatMul", ["features", "fc"], ["fused"]),
        node("Concat", ["anchor", "mask"], ["ids"], axis=0),
        node("Gather", ["embed", "ids"], ["x"]),
        node("Concat", ["fused", "x"], ["both"], axis=0),
    ]
    for kind, long in (("k", "key"), ("v", "value")):
        nodes += [
            node("MatMul", ["both", kind], [f"{kind}_rows"]),
            node("Reshape", [f"{kind}_rows", "heads"], [f"{kind}_heads"]),
            node(
                "TensorScatter",
                [f"past_{long}_0", f"{kind}_heads", "context_length"],
                [f"present_{long}_0"],
                axis=2,
            ),
        ]
    nodes += [
        node("Shape", ["both"], ["num_rows"], start=0, end=1),
        node("Add", ["context_length", "num_rows"], ["valid"]),
        node("MatMul", ["x", "q"], ["q_rows"]),
        node("Reshape", ["q_rows", "heads"], ["q_heads"]),
        node(
            "Attention",
            ["q_heads", "present_key_0", "present_value_0", "", "", "", "valid"],
            ["seen"],
        ),
        node("Reshape", ["seen", "rows"], ["seen_rows"]),
        node("Add", ["x", "seen_rows"], ["y"]),
        node("MatMul", ["y", "head"], ["logits"]),
        node("ArgMax", ["logits"], ["chosen"], axis=1, keepdims=0),
        node("Unsqueeze", ["chosen", "zero"], ["draft_ids"]),
    ]
    return nodes


def write_graph(path: Path, *, is_open: bool = False) -> Path:
    """Write the drafter as an ONNX file, the rows of its caches fixed or left open."""
    constant = onnx.numpy_helper.from_array
    ints = {
        "mask": [MASK] * (BLOCK - 1),
        "zero": [0],
        "heads": [1, 1, -1, HIDDEN],
        "rows": [-1, HIDDEN],
    }
    initialisers = [constant(np.array(value, np.int64), name) for name, value in ints.items()]
    initialisers += [constant(value, name) for name, value in make_weights().items()]
    nodes = make_nodes()
    table = signature()
    types = {"int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT}

    def shape(tensor: TensorSpec) -> list[int | str]:
        return ["L" if is_open and size == CAPACITY else size for size in tensor.shape]

    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(t.name, types[t.dtype], shape(t)) for t in tensors]
        for tensors in (table.inputs, table.outputs)
    )
    graph = onnx.helper.make_graph(nodes, "draft", inputs, outputs, initialisers)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=11
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def reference(anchor: int, features: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Draft from all features of the text, [S, WIDTH]; also the fused context [S, HIDDEN]."""
    weights = make_weights()
    fused = features @ weights["fc"]
    x = weights["embed"][[anchor, *[MASK] * (BLOCK - 1)]]
    both = np.concatenate([fused, x])
    scores = (x @ weights["q"]) @ (both @ weights["k"]).T / np.sqrt(HIDDEN)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    seen = shares @ (both @ weights["v"]) / shares.sum(1, keepdims=True)
    ids: NDArray[np.int64] = ((x + seen) @ weights["head"]).argmax(1)
    return ids, fused


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("ort") / "draft.onnx")


def feeds(anchor: int, features: Floats, start: int) -> dict[str, NDArray[Any]]:
    return {
        "anchor": np.array([anchor]),
        "target_hidden": features[None],
        "context_length": np.array([start]),
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_rounds_of_every_size_equal_a_recomputation_without_cache(
    model: Path, threads: int
) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(CAPACITY, WIDTH)).astype(np.float32)
    with OrtSession(model, signature(), threads=threads) as session:
        start = 0
        for anchor, size in ((3, 7), (5, 1), (9, 4), (1, 1), (16, 7)):
            found = session.run(feeds(anchor, features[start : start + size], start))
            start += size
            ids, fused = reference(anchor, features[:start])
            assert found["draft_ids"].tolist() == [ids.tolist()]
            np.testing.assert_allclose(found["fused"], fused[start - size :], rtol=1e-5, atol=1e-5)
        assert start + BLOCK == CAPACITY
        found = session.run(feeds(4, features[:2], 0))  # a new text over the old rows
        assert found["draft_ids"].tolist() == [reference(4, features[:2])[0].tolist()]


def test_caches_are_updated_in_place_and_nothing_warns_of_a_copy(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    features = np.ones((9, WIDTH), np.float32)
    with OrtSession(model, signature()) as session:
        before = [session.cache_address(name) for name in ("past_key_0", "past_value_0")]
        assert len(set(before)) == 2
        for start in range(3):
            outputs = session.run(feeds(3, features[start : start + 1], start))
            assert set(outputs) == {"draft_ids", "fused"}
        (plan,) = session._plans.values()
        assert [value.data_ptr() for value in plan.binding.get_outputs()[2:]] == before
        addresses = [session.cache_address(name) for name in ("past_key_0", "past_value_0")]
        assert addresses == before
        held = session._caches["past_key_0"].numpy()
    np.testing.assert_allclose(
        held[0, 0, :3], features[:3] @ make_weights()["fc"] @ make_weights()["k"], rtol=1e-5
    )
    assert held[0, 0, 3 : 3 + BLOCK].any(), "the block's rows stand behind the context"
    assert not held[0, 0, 3 + BLOCK :].any(), "the rest was never written"
    assert "in-place" not in capfd.readouterr().err


def test_caches_grow_with_the_text_and_keep_what_they_hold(tmp_path: Path) -> None:
    features = np.random.default_rng(4).normal(size=(LARGE, WIDTH)).astype(np.float32)
    grown, addresses, start = [], set(), 0
    open_graph = write_graph(tmp_path / "open.onnx", is_open=True)
    with OrtSession(open_graph, signature(LARGE), can_grow=True) as session:
        for anchor, size in ((3, 100), (5, 12), (9, 16), (1, 200), (16, 268)):
            given = feeds(anchor, features[start : start + size], start)
            start += size
            found = session.run(given, rows=start + BLOCK)
            assert found["draft_ids"].tolist() == [reference(anchor, features[:start])[0].tolist()]
            grown.append(session.cache_rows)
            addresses.add(session.cache_address("past_key_0"))
        assert start + BLOCK == LARGE
        for start, size in ((0, 90), (90, 40)):  # a new, short text
            found = session.run(
                feeds(2, features[start : start + size], start), rows=start + size + BLOCK
            )
            grown.append(session.cache_rows)
        assert found["draft_ids"].tolist() == [reference(2, features[:130])[0].tolist()]
    assert grown == [128, 128, 192, 384, LARGE, 128, 192]
    assert len(addresses) == 4


@pytest.mark.parametrize(
    ("rows", "grown"), [(127, 128), (128, 128), (129, 192), (LARGE - 1, LARGE), (LARGE, LARGE)]
)
def test_caches_grow_for_the_first_row_that_they_lack_and_keep_every_one(
    tmp_path: Path, rows: int, grown: int
) -> None:
    features = np.random.default_rng(6).normal(size=(LARGE, WIDTH)).astype(np.float32)
    open_graph = write_graph(tmp_path / "open.onnx", is_open=True)
    names = ("past_key_0", "past_value_0")
    with OrtSession(open_graph, signature(LARGE), can_grow=True) as session:
        session.run(feeds(3, features[:80], 0), rows=84)
        session.run(feeds(3, features[80:124], 80), rows=128)  # up to the last row
        assert session.cache_rows == 128
        held = [session._caches[name].numpy().copy() for name in names]
        start = min(128, rows - 1 - BLOCK)
        session.run(feeds(4, features[start : rows - BLOCK], start), rows=rows)
        assert session.cache_rows == grown
        for name, before in zip(names, held, strict=True):
            now = session._caches[name].numpy()
            assert now.shape[2] == grown
            assert np.array_equal(now[:, :, :start], before[:, :, :start])
            assert before[:, :, :128].any(axis=-1).all()
            assert now[:, :, :rows].any(axis=-1).all()
            assert not now[:, :, max(rows, 128) :].any()


def test_an_interrupt_while_the_caches_grow_loses_nothing(tmp_path: Path) -> None:
    features = np.random.default_rng(5).normal(size=(300, WIDTH)).astype(np.float32)
    open_graph = write_graph(tmp_path / "open.onnx", is_open=True)
    with OrtSession(open_graph, signature(LARGE), can_grow=True) as session:
        session.run(feeds(3, features[:250], 0), rows=254)
        runtime = session._runtime
        made: list[Any] = []

        class Interrupted:
            @staticmethod
            def ortvalue_from_numpy(*arguments: Any) -> Any:
                if made:  # the first cache has grown, the second has not
                    raise KeyboardInterrupt
                made.append(runtime.OrtValue.ortvalue_from_numpy(*arguments))
                return made[0]

        session._runtime = SimpleNamespace(OrtValue=Interrupted)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            session.run(feeds(3, features[250:], 250), rows=304)
        session._runtime = runtime
        found = session.run(feeds(7, features[250:252], 250), rows=256)  # less than was wanted
        assert found["draft_ids"].tolist() == [reference(7, features[:252])[0].tolist()]
        found = session.run(feeds(8, features[252:], 252), rows=304)
        assert found["draft_ids"].tolist() == [reference(8, features)[0].tolist()]


def test_an_output_that_is_not_wanted_is_not_fetched(model: Path) -> None:
    features = np.ones((2, WIDTH), np.float32)
    with OrtSession(model, signature()) as session:
        everything = session.run(feeds(3, features, 0))
        some = session.run(feeds(3, features, 0), unwanted=("fused",))
    assert set(some) == {"draft_ids"}
    np.testing.assert_array_equal(some["draft_ids"], everything["draft_ids"])


def test_the_warning_that_must_not_appear_does_appear_for_a_copied_cache(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Guards the test above: ONNX Runtime still says so when caches are not bound in place."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    caches = {
        f"past_{kind}_0": np.zeros((1, 1, CAPACITY, HIDDEN), np.float32)
        for kind in ("key", "value")
    }
    session.run(None, feeds(3, np.ones((1, WIDTH), np.float32), 0) | caches)
    assert "in-place" in capfd.readouterr().err


def test_results_belong_to_the_caller(model: Path) -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4, WIDTH)).astype(np.float32)
    with OrtSession(model, signature()) as session:
        first = session.run(feeds(3, features[:2], 0))
        kept = {name: value.copy() for name, value in first.items()}
        second = session.run(feeds(8, features[2:], 2))
    assert second["draft_ids"].tolist() != kept["draft_ids"].tolist()
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])


def test_feeds_need_not_be_contiguous(model: Path) -> None:
    features = np.random.default_rng(2).normal(size=(WIDTH, 3)).astype(np.float32).T
    with OrtSession(model, signature()) as session:
        found = session.run(feeds(3, features, 0))
    assert found["draft_ids"].tolist() == [reference(3, features)[0].tolist()]


def test_feeds_are_checked_before_the_graph_runs(model: Path) -> None:
    good = feeds(3, np.ones((2, WIDTH), np.float32), 0)
    with OrtSession(model, signature()) as session:
        with pytest.raises(
            FeedError,
            match=r"target_hidden: got shape \[1, 2, 5\], expected "
            r"\[1, T \(1..20\), 6\]",
        ):
            session.run(good | {"target_hidden": good["target_hidden"][:, :, :5]})
        with pytest.raises(FeedError, match="anchor: got dtype int32"):
            session.run(good | {"anchor": np.array([3], np.int32)})
        with pytest.raises(FeedError, match="context_length: missing"):
            session.run({name: good[name] for name in ("anchor", "target_hidden")})
        with pytest.raises(FeedError, match="unknown input 'past_key_0'"):
            session.run(good | {"past_key_0": np.zeros((1, 1, CAPACITY, HIDDEN), np.float32)})
        session.run(good)
        with pytest.raises(FeedError, match="anchor: got dtype float64"):
            session.run(good | {"anchor": np.array([3.0])})  # after feeds that were right
        with pytest.raises(FeedError, match="unknown input 'other'"):
            session.run({name: good[name] for name in good} | {"other": good["anchor"]})


def test_another_graph_than_the_manifests_is_refused(model: Path) -> None:
    table = signature()
    renamed = Signature(inputs=table.inputs, outputs=table.outputs[1:], dimensions=table.dimensions)
    with pytest.raises(BundleError, match=r"outputs are .*'draft_ids'.*, the manifest says"):
        OrtSession(model, renamed)


@pytest.mark.needs("ONNX Runtime without CUDA")
def test_a_provider_this_machine_lacks_is_refused_whatever_the_package_lists(
    model: Path,
) -> None:
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(BackendError, match="asked for CUDAExecutionProvider") as refusal,
    ):
        OrtSession(model, signature(), device="cuda")
    assert "draftrt[ort-gpu]" in refusal.value.hint
    with pytest.raises(BackendError, match=r"no device 'tpu'.*\['cpu', 'cuda'\]"):
        OrtSession(model, signature(), device="tpu")


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no such file"):
        OrtSession(tmp_path / "draft.onnx", signature())
    (tmp_path / "draft.onnx").write_bytes(b"no graph")
    with pytest.raises(BackendError, match="refuses it"):
        OrtSession(tmp_path / "draft.onnx", signature())


def test_a_bfloat16_graph_is_refused_with_the_way_out(model: Path) -> None:
    table = signature()
    brain = TensorSpec(name="past_key_0", dtype="bfloat16", shape=(1, 1, CAPACITY, HIDDEN))
    with pytest.raises(BackendError, match="past_key_0 is bfloat16") as refusal:
        OrtSession(
            model,
            Signature(
                inputs=(*table.inputs[:3], brain),
                outputs=table.outputs,
                dimensions=table.dimensions,
            ),
        )
    assert "--precision fp32" in refusal.value.hint


def test_a_closed_session_says_so(model: Path) -> None:
    session = OrtSession(model, signature())
    session.close()
    session.close()
    with pytest.raises(BackendError, match="the session is closed"):
        session.run(feeds(3, np.ones((1, WIDTH), np.float32), 0))
