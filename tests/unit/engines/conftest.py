"""Small bundles written by hand: a drafter-like graph with its manifest, and flawed graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import ArrayLike, DTypeLike
from onnx import TensorProto, helper, numpy_helper

from draftrt.bundle import hash_files, write_manifest
from draftrt.manifest import GraphEntry, Manifest
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import Precision, TargetSpec

BLOCK, WIDTH, VOCABULARY, CONTEXT = 4, 64, 96, 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
TYPES = {
    Precision.FP32: (np.dtype(np.float32), TensorProto.FLOAT),
    Precision.FP16: (np.dtype(np.float16), TensorProto.FLOAT16),
    Precision.BF16: (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16),
}
Extend = Callable[["Graph", str], str]


class Graph:
    """Nodes and initialisers of an ONNX graph, appended one by one."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        node = helper.make_node(op, inputs, [name], name=f"{name}_node", **attributes)
        self.nodes.append(node)
        return name

    def constant(self, name: str, value: ArrayLike, dtype: DTypeLike = np.int64) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> str:
        values = self.random.standard_normal(shape, dtype=np.float32) * 0.05
        return self.constant(name, values, dtype)


def cache_names() -> list[str]:
    return ["key_0", "value_0"]


def write_draft_graph(path: Path, precision: Precision, extend: Extend | None) -> None:
    """Write one drafter layer in the operators that an exported drafter is made of.

    Args:
        path: ONNX file.
        precision: type of layer weights and caches.
        extend: appends nodes to the logits and returns the name of its result.
    """
    dtype, onnx_type = TYPES[precision]
    graph = Graph()
    node, constant, weight = graph.node, graph.constant, graph.weight
    constant("axis0", [0])
    node("Concat", ["anchor", constant("masks", [50] * (BLOCK - 1))], "ids", axis=0)
    node("Gather", [weight("embed", (VOCABULARY, WIDTH), dtype), "ids"], "block", axis=0)
    node("Squeeze", ["target_hidden", "axis0"], "features")
    node("Gemm", ["features", weight("fc", (WIDTH, 2 * WIDTH), np.float32)], "fused", transB=1)
    node("Cast", ["fused"], "context", to=onnx_type)
    node("Shape", ["features"], "num_rows", start=0, end=1)
    node("Add", ["context_length", "num_rows"], "start")
    node("Add", ["start", constant("block_size", [BLOCK])], "end")
    node("Add", ["start", constant("block_rows", np.arange(BLOCK))], "block_positions")
    node("RMSNormalization", ["block", weight("norm", (WIDTH,), dtype)], "normed", axis=-1)
    node("Concat", ["context", "normed"], "rows", axis=0)
    for name, source, heads in (("q", "normed", HEADS), ("k", "rows", KV_HEADS), ("v", "rows", 2)):
        table = weight(f"{name}_proj", (heads * HEAD_DIM, WIDTH), dtype)
        node("Gemm", [source, table], f"{name}_flat", transB=1)
        shape = constant(f"{name}_shape", [-1, heads, HEAD_DIM])
        node("Reshape", [f"{name}_flat", shape], f"{name}_rows")
        node("Transpose", [f"{name}_rows"], f"{name}_heads", perm=[1, 0, 2])
        node("Unsqueeze", [f"{name}_heads", "axis0"], name)
    for cache, update in zip(cache_names(), ("k", "v"), strict=True):
        inputs = [f"past_{cache}", update, "context_length"]
        node("TensorScatter", inputs, f"present_{cache}", axis=2, mode="linear")
    attended = ["q", "present_key_0", "present_value_0", causal_mask(graph), "", "", "end"]
    node("Attention", attended, "attention", scale=HEAD_DIM**-0.5)
    node("Squeeze", ["attention", "axis0"], "attention_heads")
    node("Transpose", ["attention_heads"], "attention_rows", perm=[1, 0, 2])
    flat = constant("flat_shape", [BLOCK, HEADS * HEAD_DIM])
    node("Reshape", ["attention_rows", flat], "attention_flat")
    o_proj = weight("o_proj", (WIDTH, HEADS * HEAD_DIM), dtype)
    node("Gemm", ["attention_flat", o_proj], "projected", transB=1)
    node("Cast", [node("Add", ["block", "projected"], "hidden")], "hidden32", to=TensorProto.FLOAT)
    node("Gemm", ["hidden32", weight("head", (VOCABULARY, WIDTH), np.float32)], "logits", transB=1)
    scores = extend(graph, "logits") if extend else "logits"
    node("Unsqueeze", [node("ArgMax", [scores], "best", axis=-1, keepdims=0), "axis0"], "draft_ids")
    save(path, graph, draft_signature(precision), opset=24)


def causal_mask(graph: Graph) -> str:
    graph.node("Unsqueeze", ["block_positions", graph.constant("axis1", [1])], "query_column")
    graph.constant("key_row", np.arange(CONTEXT)[None, :])
    graph.node("LessOrEqual", ["key_row", "query_column"], "causal")
    return graph.node("Unsqueeze", ["causal", graph.constant("axes01", [0, 1])], "mask")


def draft_signature(precision: Precision) -> Signature:
    dtype = precision.dtype
    cache: tuple[int | str, ...] = (1, KV_HEADS, CONTEXT, HEAD_DIM)
    past = [TensorSpec(name=f"past_{c}", dtype=dtype, shape=cache) for c in cache_names()]
    present = [
        TensorSpec(name=f"present_{c}", dtype=dtype, shape=cache, alias=f"past_{c}")
        for c in cache_names()
    ]
    return Signature(
        inputs=(
            TensorSpec(name="anchor", dtype="int64", shape=(1,)),
            TensorSpec(name="target_hidden", dtype="float32", shape=(1, "T", 2 * WIDTH)),
            TensorSpec(name="context_length", dtype="int64", shape=(1,)),
            *past,
        ),
        outputs=(TensorSpec(name="draft_ids", dtype="int64", shape=(1, BLOCK)), *present),
        dimensions={"T": DimRange(min=1, opt=8, max=CONTEXT - BLOCK)},
    )


def save(path: Path, graph: Graph, signature: Signature, opset: int) -> None:
    """Write the model with its weights in a file beside it and check it."""
    onnx_types = {
        "int64": TensorProto.INT64,
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "bfloat16": TensorProto.BFLOAT16,
    }

    def values(specs: tuple[TensorSpec, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(s.name, onnx_types[s.dtype], s.shape) for s in specs]

    inputs, outputs = values(signature.inputs), values(signature.outputs)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "draft", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=11,
    )
    onnx.save(
        model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=64
    )
    onnx.checker.check_model(path, full_check=True)


def write_bundle(folder: Path, precision: Precision, signature: Signature) -> Path:
    """Write the manifest of a folder that holds draft.onnx and its data."""
    entry = GraphEntry(
        file="draft.onnx",
        data="draft.onnx.data",
        precision=precision,
        profile="fixed",
        opset=24,
        max_context=CONTEXT,
        signature=signature,
    )
    manifest = Manifest(
        drafter=None,
        target=target_spec(),
        graphs={"draft": entry},
        files=hash_files(folder),
        inputs={},
        tools={},
        command="",
        created="2026-01-01T00:00:00Z",
    )
    write_manifest(folder, manifest)
    return folder


def target_spec() -> TargetSpec:
    facts = {field.name for field in dataclasses.fields(TargetSpec)} - {"sources"}
    return TargetSpec(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        num_layers=4,
        hidden_size=WIDTH,
        vocab_size=VOCABULARY,
        table_rows=None,
        tie_word_embeddings=True,
        eos_token_ids=(1,),
        sources=dict.fromkeys(facts, "config.json"),
    )


class MakeBundle(Protocol):
    """Writes a bundle with the drafter-like graph."""

    def __call__(
        self, precision: Precision = Precision.FP16, extend: Extend | None = None
    ) -> Path: ...


@pytest.fixture
def make_bundle(tmp_path: Path) -> MakeBundle:
    """Write a bundle with the drafter-like graph, in some precision or with nodes added."""

    def make(precision: Precision = Precision.FP16, extend: Extend | None = None) -> Path:
        folder = tmp_path / "bundle"
        folder.mkdir()
        write_draft_graph(folder / "draft.onnx", precision, extend)
        return write_bundle(folder, precision, draft_signature(precision))

    return make


@pytest.fixture
def dequantized_bundle(tmp_path: Path) -> Callable[[int, int], Path]:
    """Write a bundle whose graph multiplies activations by one stored low-precision weight.

    Called with the weight's ONNX type and the number of products it feeds. TensorRT-RTX 1.7 crashes
    on an int4 weight that feeds two of them.
    """

    def make(weight_type: int, products: int) -> Path:
        folder = tmp_path / "bundle"
        folder.mkdir()
        size, block = 64, 32
        bits = 4 if weight_type == TensorProto.INT4 else 8
        raw = bytes(size * size * bits // 8)
        graph = Graph()
        weight = helper.make_tensor("weight", weight_type, [size, size], raw, raw=True)
        graph.initializers.append(weight)
        graph.constant("scale", np.ones((size // block, size)), np.float16)
        if bits == 4:
            inputs = ["weight", "scale"]
            graph.node("DequantizeLinear", inputs, "wide", axis=0, block_size=block)
        else:
            graph.constant("one", 1, np.float16)
            graph.node("DequantizeLinear", ["weight", "one"], "wide")
        feeds = []
        results = []
        for index in range(products):
            graph.node("MatMul", [f"x{index}", "wide"], f"y{index}")
            shape = (4 * (index + 1), size)
            feeds.append(TensorSpec(name=f"x{index}", dtype="float16", shape=shape))
            results.append(TensorSpec(name=f"y{index}", dtype="float16", shape=shape))
        signature = Signature(inputs=tuple(feeds), outputs=tuple(results))
        save(folder / "draft.onnx", graph, signature, opset=23)
        return write_bundle(folder, Precision.FP16, signature)

    return make
