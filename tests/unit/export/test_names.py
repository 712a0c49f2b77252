"""Nodes and values of a graph carry the path of the module that computes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from draftrt.errors import ExportError
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.tensors import ComputedRef, GraphTensor
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.shapes import decoder_shapes, rope_of
from draftrt.export.options import ExportOptions
from draftrt.export.tracing import names as titles
from draftrt.export.weights.tensors import draft_tensors, graph_dtype, rope_tensors
from draftrt.export.write_graphs import record_draft, record_target, write_draft_graph
from draftrt.spec import (
    DecoderSpec,
    GatedDeltaSpec,
    Gemma4Spec,
    MuseSpec,
    Precision,
    Profile,
    RopeLayout,
    RopeSpec,
    ShortConvSpec,
)
from draftrt.validate.records.cases import read_case
from draftrt.validate.records.golden import case_target

CASES = Path(__file__).resolve().parents[2] / "golden"
DRAFTERS = sorted(folder.parent.name for folder in CASES.glob("*/case.json"))
ROWS = 64
NAMED = ("Gemm", "MatMul", "Attention", "RMSNormalization")
ROPE = RopeSpec(
    layout=RopeLayout.NEOX,
    theta=1e4,
    type="default",
    rotary_dim=16,
    head_dim=16,
    max_position_embeddings=128,
)
PLAIN = DecoderSpec(
    hidden_size=48,
    intermediate_size=64,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    activation="silu",
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=True,
    rope=ROPE,
    windows=(None,) * 4,
    tie_word_embeddings=False,
    vocab_size=96,
    table_rows=96,
    sources={one.name: "test" for one in fields(DecoderSpec) if one.name != "sources"},
)
SLIDING = replace(PLAIN, windows=(8, 8, None, 8))
TARGETS = {
    "plain": PLAIN,
    "sliding": SLIDING,
    "tied": replace(PLAIN, tie_word_embeddings=True, qk_norm=False, qkv_bias=True),
    "gemma4": replace(
        SLIDING,
        gemma4=Gemma4Spec(
            full_head_dim=32,
            full_num_kv_heads=1,
            full_key_is_value=True,
            full_rope=replace(ROPE, head_dim=32, rotary_dim=32),
            embedding_scale=7.0,
            final_logit_softcapping=30.0,
            tensor_prefix="model.language_model.",
        ),
    ),
    "muse": replace(
        SLIDING,
        qk_norm=False,
        muse=MuseSpec(
            sliding_has_rope=True,
            full_has_rope=False,
            post_norm_eps=1e-5,
            query_scale=2.0,
            output_multiplier=0.5,
            final_logit_softcapping=20.0,
            tensor_prefix="model.",
        ),
    ),
    "qwen3_5": replace(
        PLAIN,
        delta=GatedDeltaSpec(
            layers=(0, 1, 2),
            num_key_heads=2,
            num_value_heads=4,
            key_dim=8,
            value_dim=8,
            kernel_size=4,
            carried_rows=8,
            tensor_prefix="model.",
        ),
    ),
    "lfm2": replace(
        PLAIN,
        short_conv=ShortConvSpec(
            layers=(0, 2), kernel_size=3, has_bias=False, carried_rows=8, tensor_prefix="model."
        ),
    ),
}


def check_names(graph: Any, weights: Collection[str]) -> None:
    """Every node has a name of its own; what multiplies or norms is named as its weight is."""
    for names in (
        [node.name for node in graph.node],
        [name for node in graph.node for name in node.output] + [one.name for one in graph.input],
    ):
        assert len(set(names)) == len(names)
        assert all(names)
    assert not {name for node in graph.node for name in node.output} & {*weights}
    modules = {name.rpartition(".")[0] for name in weights}
    parents = {path.rpartition(".")[0] for path in modules} | modules
    wanted = {name for name in modules if name.endswith(("_proj", "norm", "lm_head", "fc"))}
    for node in graph.node:
        used = [name.removesuffix(".weight") for name in node.input if name.endswith(".weight")]
        wanted -= {node.name}
        if node.op_type not in NAMED:
            continue
        if used and used[0].endswith("embed_tokens"):
            assert node.name == "lm_head"
        elif used:
            number = node.name.removeprefix(used[0])
            assert node.name.startswith(used[0])
            assert not number or number[1:].isdigit()
        else:
            assert any(node.name.startswith(f"{path}.") for path in parents if path)
    assert not wanted, f"no node is called {sorted(wanted)}"


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("profile", Profile)
def test_a_drafters_nodes_are_named_as_its_weights(name: str, profile: Profile) -> None:
    case = read_case(CASES / name)
    loaded = load_drafter(case.draft, case_target(case))
    for precision in (Precision.FP32, Precision.FP16):
        weights = draft_tensors(loaded.spec, loaded.tensors, precision, ROWS)
        options = ExportOptions(precision=precision, profile=profile)
        check_names(record_draft(loaded.spec, weights, options, ROWS).graph, weights)


def target_weights(spec: DecoderSpec, precision: Precision) -> Mapping[str, GraphTensor]:
    """A target's weights, without content."""
    made = {}
    for name, shape in decoder_shapes(spec).items():
        ref = ComputedRef(name, "float32", shape, compute=lambda: torch.zeros(()))
        made[name] = GraphTensor(name, shape, graph_dtype(name, precision), ref)
    for window in dict.fromkeys(spec.windows):
        embedding, prefix = rope_of(spec, window)
        made |= rope_tensors(embedding, ROWS, prefix)
    return made


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("profile", Profile)
def test_a_targets_nodes_are_named_as_its_weights(name: str, profile: Profile) -> None:
    spec = TARGETS[name]
    for precision in (Precision.FP32, Precision.FP16):
        weights = target_weights(spec, precision)
        options = ExportOptions(precision=precision, profile=profile)
        graph = record_target(spec, (-1, 1, 3), weights, options, ROWS).graph
        check_names(graph, weights)
        values = {name for node in graph.node for name in node.output}
        assert {f"model.layers.{layer}.output" for layer in range(spec.num_layers)} <= values
        layers = [node for node in graph.node if not node.name.startswith("features")]
        read = {one for node in layers for one in node.input}
        outputs = [f"model.layers.{layer}.output" for layer in range(spec.num_layers)]
        assert {"model.embed_tokens.output", *outputs} <= read  # each layer reads the one before


def test_a_first_layer_that_reads_a_value_of_another_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def embed(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
        table = decoder.get_parameter("model.embed_tokens.weight")
        return titles.name(torch.nn.functional.embedding(ids, table), "model.other")

    monkeypatch.setattr(Decoder, "_embed", embed)
    with pytest.raises(ExportError, match=r"layer 0 reads no value named embed_tokens\.output"):
        record_target(SLIDING, (), target_weights(SLIDING, Precision.FP32), ExportOptions(), ROWS)


def test_layers_share_what_is_none_of_theirs() -> None:
    """A mask, positions and sizes are computed once, whatever layer asks first."""
    weights = target_weights(SLIDING, Precision.FP32)
    for profile in Profile:
        graph = record_target(SLIDING, (), weights, ExportOptions(profile=profile), ROWS).graph
        for op in ("LessOrEqual", "Range", "Shape"):
            inside = [node.name for node in graph.node if node.op_type == op and "." in node.name]
            assert not inside


EXPORT = """
import sys
from pathlib import Path
from draftrt.cli import group
group(["export", sys.argv[1], "--target", sys.argv[2], "-o", sys.argv[3], "--max-context", "64"])
"""


@pytest.mark.extended
def test_two_exports_are_the_same_bytes(tmp_path: Path, assets: Path) -> None:
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        pair = [str(assets / "tiny-dspark"), str(assets / "tiny-target"), str(out)]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", EXPORT, *pair], check=True, env=env)
        found.append({one.name: one.read_bytes() for one in sorted(out.glob("*.onnx*"))})
    assert len(found[0]) >= 4
    assert found[0] == found[1]


def test_the_files_of_a_bundle_keep_the_names(tmp_path: Path) -> None:
    case = read_case(CASES / "zlab-dflash-swa-causal")
    loaded = load_drafter(case.draft, case_target(case))
    entry = write_draft_graph(loaded, tmp_path, ExportOptions(max_context=ROWS), lambda line: None)
    weights = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, ROWS)
    for file in (entry.file, entry.flexible):
        model = onnx.load(str(tmp_path / file), load_external_data=False)
        check_names(model.graph, weights)
