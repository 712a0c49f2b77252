"""The check of large graphs, by samples: planted faults in weights, layers and head are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import ExportError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("sampled")]
CONTEXT = 48
LAYERS = 4  # the first and the third slide


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair in float32 whose drafter has layers of two kinds, and its bundle."""
    folder = tmp_path_factory.mktemp("sampled")
    write_target(folder / "target", ToyTarget(dtype="float32"))
    toy = ToyDrafter(kind=Kind.ZLAB_DFLASH, dtype="float32", num_layers=LAYERS, sliding_window=6)
    write_drafter(folder / "draft", toy)
    options = ExportOptions(max_context=CONTEXT)
    export_bundle(folder / "draft", folder / "target", folder / "bundle", options)
    return folder


def sampled(folder: Path, tamper: Callable[[Path], None] | None = None) -> list[str]:
    """Check the draft graph by samples, after a fault is planted in it."""
    from draftrt.export.check.drafter import check_draft_sampled
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.weights.tensors import draft_tensors

    loaded = load_drafter(folder / "draft", read_target(folder / "target"))
    entry = Bundle.open(folder / "bundle").graph()
    path = folder / "tampered"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "bundle", path)
    if tamper is not None:
        tamper(path)
    tensors = draft_tensors(loaded.spec, loaded.tensors, entry.precision, CONTEXT)
    file = path / entry.file
    try:
        return check_draft_sampled(
            file, loaded.spec, tensors, entry.signature, entry.precision, CONTEXT
        )
    finally:
        assert not list(path.glob(".*")), "its scratch files are gone"


def edit(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def tamper(path: Path) -> None:
        model = onnx.load(str(path / "draft.onnx"), load_external_data=False)
        change(model.graph)
        onnx.save(model, str(path / "draft.onnx"))

    return tamper


def place(path: Path, name: str) -> tuple[Path, int]:
    graph = onnx.load(str(path / "draft.onnx"), load_external_data=False).graph
    tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return path / entries["location"], int(entries["offset"])


def node_of(graph: Any, layer: int, kind: str, index: int = 0) -> Any:
    found = [n for n in graph.node if n.name.startswith(f"layers.{layer}.") and n.op_type == kind]
    return found[index]


def test_every_kind_of_layer_is_computed_in_every_round(folder: Path) -> None:
    lines = sampled(folder)
    assert lines[0].startswith("rows of all ")
    assert lines[1:3] == [
        f"layer {first} stands for 1 more, the same over weights of their own" for first in (0, 1)
    ]
    computed = [line.split(", ") for line in lines[3:]]
    wanted = [(0, "0 + 1"), (2, "42 + 2"), (1, "0 + 1"), (3, "42 + 2")]
    assert [(words[0], words[2].split(":")[0]) for words in computed] == [
        (f"layer {layer} of {LAYERS}", f"context {sizes} rows") for layer, sizes in wanted
    ]


def overwritten(name: str) -> Callable[[Path], None]:
    def tamper(path: Path) -> None:
        file, offset = place(path, name)
        with file.open("r+b") as stream:
            stream.seek(offset)
            stream.write(b"\0\0\0\1")

    return tamper


def swapped_places(graph: Any) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    one, two = (tensors[f"layers.{index}.mlp.up_proj.weight"] for index in (1, 3))
    kept = list(one.external_data)
    del one.external_data[:]
    one.external_data.extend(two.external_data)
    del two.external_data[:]
    two.external_data.extend(kept)


def shifted_head(graph: Any) -> None:
    head = next(tensor for tensor in graph.initializer if tensor.name == "lm_head.weight")
    offset = next(entry for entry in head.external_data if entry.key == "offset")
    offset.value = str(int(offset.value) + 4 * head.dims[1])


def other_weight(graph: Any) -> None:
    node = next(n for n in graph.node if "layers.2.mlp.up_proj.weight" in n.input)
    node.input[1] = "layers.0.mlp.up_proj.weight"


def other_weight_of_the_same_layer(graph: Any) -> None:
    node = next(n for n in graph.node if "layers.2.mlp.up_proj.weight" in n.input)
    node.input[1] = "layers.2.mlp.gate_proj.weight"


def other_layout(graph: Any) -> None:
    node = node_of(graph, 3, "RotaryEmbedding")
    next(one for one in node.attribute if one.name == "interleaved").i = 1


def other_epsilon(graph: Any) -> None:
    node = node_of(graph, 2, "RMSNormalization")
    next(one for one in node.attribute if one.name == "epsilon").f *= 2


def other_constant(graph: Any) -> None:
    node = node_of(graph, 2, "Reshape")
    (shape,) = (t for t in graph.initializer if t.name == node.input[1])
    array = onnx.numpy_helper.to_array(shape).copy()
    made = onnx.numpy_helper.from_array(array[::-1].copy(), "planted")
    graph.initializer.append(made)
    node.input[1] = "planted"


def other_state(graph: Any) -> None:
    for node in graph.node:
        if node.name.startswith("layers.3."):
            node.input[:] = [
                "layers.1.output" if name == "layers.2.output" else name for name in node.input
            ]


def other_cache(graph: Any) -> None:
    node_of(graph, 2, "TensorScatter").input[0] = "past_key_1"


def other_half_of_its_cache(graph: Any) -> None:
    node_of(graph, 2, "TensorScatter").input[0] = "past_value_2"


def swapped_outputs(graph: Any) -> None:
    names = {"present_key_2": "present_value_2", "present_value_2": "present_key_2"}
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]


def other_mask(graph: Any) -> None:
    mask = node_of(graph, 0, "Attention").input[3]
    full = node_of(graph, 3, "Attention")
    assert mask, "a sliding layer has a mask"
    full.input[:] = [*full.input[:3], mask]


def early_head(graph: Any) -> None:
    own = "layers.3.output"
    for node in graph.node:
        if not node.name.startswith("layers."):
            node.input[:] = ["layers.2.output" if name == own else name for name in node.input]


def sliding_alike(graph: Any) -> None:
    """Both sliding layers see what the full ones see."""
    full = list(node_of(graph, 1, "Attention").input)
    for layer in (0, 2):
        node = node_of(graph, layer, "Attention")
        node.input[:] = [*node.input[:3], *full[3:]]


def scaled_alike(graph: Any) -> None:
    for layer in range(LAYERS):
        node = node_of(graph, layer, "Attention")
        next(one for one in node.attribute if one.name == "scale").f *= 2


def other_choice(graph: Any) -> None:
    node = next(node for node in graph.node if node.op_type == "ArgMax")
    node.op_type = "ArgMin"


WEIGHTS = {
    "a layer's weight": (
        overwritten("layers.1.mlp.up_proj.weight"),
        r"layers.1.mlp.up_proj.weight: row 0 has other content",
    ),
    "two layers' weights": (
        edit(swapped_places),
        r"layers.1.mlp.up_proj.weight: row 0 has other content; layers.3",
    ),
    "rows of the head": (edit(shifted_head), r"lm_head.weight: row 0 has other content"),
}
LAYER = "layer 2 is not layer 0 over weights of its own: "
STRUCTURES = {
    "another layer's weight": (edit(other_weight), r"of layer 2 uses values inside layers \[0\]"),
    "another weight": (edit(other_weight_of_the_same_layer), f"{LAYER}Gemm layers.2.mlp.up_proj"),
    "an attribute": (edit(other_layout), "layer 3 is not layer 1 .*: RotaryEmbedding layers.3."),
    "an epsilon": (edit(other_epsilon), f"{LAYER}RMSNormalization layers.2."),
    "a constant": (edit(other_constant), f"{LAYER}Reshape layers.2."),
    "another layer's state": (edit(other_state), r"of layer 3 uses values inside layers \[1\]"),
    "another layer's cache": (edit(other_cache), r"uses values inside layers \[1\]"),
    "the other cache": (edit(other_half_of_its_cache), f"{LAYER}TensorScatter layers.2."),
    "what it returns": (edit(swapped_outputs), f"{LAYER}"),
    "a full layer's mask": (edit(other_mask), "layer 3 is not layer 1 .*: Attention layers.3."),
    "the head's state": (edit(early_head), r"of no layer uses values inside layers \[2\]"),
}
COMPUTED = {
    "what sliding layers see": (edit(sliding_alike), r"layer [02] of 4.*differ at context length"),
    "a factor of all layers": (edit(scaled_alike), r"layer 0 of 4.*differ at context length"),
    "the choice": (edit(other_choice), r"layer 0 of 4.*draft ids"),
}


@pytest.mark.parametrize("fault", [*WEIGHTS, *STRUCTURES, *COMPUTED])
def test_a_planted_fault_is_found(fault: str, folder: Path) -> None:
    tamper, says = (WEIGHTS | STRUCTURES | COMPUTED)[fault]
    with pytest.raises(ExportError, match=f"(?s){says}") as refusal:
        sampled(folder, tamper)
    assert "defect of draftrt" in refusal.value.hint


def test_kinds_of_layers_that_are_mixed_up_end_the_export(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftrt.export import write_graphs
    from draftrt.export.check import extent
    from draftrt.export.graph.layers import plan_layers

    monkeypatch.setattr(extent, "FULL_CHECK_BYTES", 0)
    monkeypatch.setattr(write_graphs, "plan_layers", lambda kinds: plan_layers([0] * len(kinds)))
    line = ["export", str(folder / "draft"), "--target", str(folder / "target"), "-o"]
    line += [str(tmp_path / "bundle"), "--max-context", str(CONTEXT), "--no-target-graph"]
    done = CliRunner().invoke(group, line)
    assert done.exit_code == 1
    assert "draft.onnx: layer 3 is not layer 1 over weights of its own" in done.stderr
    assert not list(tmp_path.iterdir())


def features(graph: Any) -> None:
    node = next(node for node in graph.node if node.name == "features.concat")
    node.input[:] = list(node.input)[::-1]


def target_layer(graph: Any) -> None:
    node = next(n for n in graph.node if "model.layers.4.mlp.up_proj.weight" in n.input)
    node.input[1] = "model.layers.4.mlp.gate_proj.weight"


def late_choice(graph: Any) -> None:
    """Let the target answer with the token behind the most probable one."""
    node = next(node for node in graph.node if "next_ids" in node.output)
    node.output[list(node.output).index("next_ids")] = "chosen"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "one"))
    graph.node.append(onnx.helper.make_node("Add", ["chosen", "one"], ["next_ids"], name="late"))


def test_a_target_is_checked_by_samples_and_its_features_by_their_places(folder: Path) -> None:
    from draftrt.export.check.target import check_target, check_target_sampled
    from draftrt.export.checkpoint.decoder import read_decoder
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.checkpoint.tensors import GraphTensor
    from draftrt.export.weights.tensors import target_tensors
    from draftrt.spec import Profile

    path = folder / "bundle" / "target.onnx"
    bundle = Bundle.open(folder / "bundle")
    spec, entry = read_decoder(read_target(folder / "target")), bundle.graph("target")
    taps = bundle.drafter().target_layer_ids
    tensors = target_tensors(spec, folder / "target", entry.precision, CONTEXT)

    def check(file: Path, tensors: Mapping[str, GraphTensor] = tensors) -> list[str]:
        return check_target_sampled(file, spec, tensors, taps, entry.precision, CONTEXT)

    def check_whole(file: Path) -> list[str]:
        line = check_target(file, spec, tensors, taps, entry.precision, Profile.FIXED, CONTEXT)
        return [line]

    lines = check(path)
    assert f"features are the results of layers {list(taps)}" in lines[1]
    assert lines[2].startswith("layer 0 stands for 5 more")
    assert [line.split()[1] for line in lines[3:]] == ["0", "5"]
    choice = (
        r"at context length 0 with \d new rows: next_ids\[\d\] is \d+, expected \d+, which has the"
    )
    for checked, change, says in (
        (check, features, "features are made of"),
        (
            check,
            target_layer,
            "layer 4 is not layer 0 over weights of its own: Gemm model.layers.4.mlp.up_proj",
        ),
        (check, late_choice, choice),
        (check_whole, late_choice, choice),
    ):
        model = onnx.load(str(path), load_external_data=False)
        change(model.graph)
        wrong = path.with_name("wrong.onnx")
        onnx.save(model, str(wrong))
        with pytest.raises(ExportError, match=says):
            checked(wrong)
        wrong.unlink()
    other = {**tensors, "model.norm.weight": tensors["model.layers.0.input_layernorm.weight"]}
    with pytest.raises(ExportError, match=r"model\.norm\.weight: has other content"):
        check(path, other)
