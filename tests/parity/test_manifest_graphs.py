"""A bundle's graphs against those of its manifest's facts: nodes, constants, tables, types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.errors import BundleError, DraftrtError, SpecError
from draftrt.export.check.reference import module_from_bundle
from draftrt.export.manifest_graphs import FileFindings, compare_with_facts
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.manifest import Manifest
from draftrt.quantization import Part, Scheme, parse_quantization
from draftrt.spec import ConfidenceSpec, DrafterSpec, Family, Precision, RopeLayout
from tests.parity.planted_graphs import insert, nodes_of, reading, set_attribute
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("manifest-graphs")]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
TOY = ToyDrafter(
    kind=Kind.DEEPSPEC_DSPARK,
    rope=YARN,
    overrides={"max_position_embeddings": 256},
)
CONTEXT = 640  # past the position from which tables are spoilt
Edit = Callable[[Any], None]


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bundles of one pair: fp32, fp16 and, in float32, int8."""
    folder = tmp_path_factory.mktemp("facts")
    target, draft = write_target(folder / "target", ToyTarget()), write_drafter(folder / "d", TOY)
    for precision in (Precision.FP32, Precision.FP16):
        options = ExportOptions(precision=precision, max_context=CONTEXT)
        export_bundle(draft, target, folder / precision.value, options)
    wishes = parse_quantization(["int8", "embedding=int8"])
    options = ExportOptions(max_context=CONTEXT, quantization=wishes)
    export_bundle(draft, target, folder / "int8", options)
    return folder


@pytest.fixture
def copy(bundles: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(bundles / name, tmp_path / name))


def edited(folder: Path, *edits: Edit, files: str = "draft") -> Path:
    """Change the nodes of a graph's files; the manifest gets their hashes."""
    for path in folder.glob(f"{files}*.onnx"):
        model = onnx.load(str(path), load_external_data=False)
        for edit in edits:
            edit(model.graph)
        onnx.save(model, str(path))
    write_manifest(folder, replace(read_manifest(folder), files=hash_files(folder)))
    return folder


def restated(folder: Path, change: Callable[[Manifest], Manifest]) -> Path:
    write_manifest(folder, change(read_manifest(folder)))
    return folder


def with_facts(folder: Path, **facts: Any) -> Path:
    def change(manifest: Manifest) -> Manifest:
        assert manifest.drafter is not None
        return replace(manifest, drafter=replace(manifest.drafter, **facts))

    return restated(folder, change)


def findings(folder: Path, graph: str = "draft") -> tuple[FileFindings, ...]:
    return compare_with_facts(Bundle.open(folder), graph)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("graph", ["draft", "target"])
def test_a_bundle_is_what_its_manifest_states(bundles: Path, name: str, graph: str) -> None:
    found = findings(bundles / name, graph)
    assert [one.file for one in found] == [f"{graph}.onnx", f"{graph}.flexible.onnx"]
    assert all(found), [one.sentences for one in found]
    assert not [one.note for one in found if one.note]


def all_epsilons(graph: Any) -> None:
    for node in nodes_of(graph, "RMSNormalization"):
        set_attribute(node, "epsilon", 1e-3)


def one_epsilon(graph: Any) -> None:
    set_attribute(nodes_of(graph, "RMSNormalization")[3], "epsilon", 1e-5)


def other_scale(graph: Any) -> None:
    for node in nodes_of(graph, "Attention"):
        set_attribute(node, "scale", 0.252)


def interleaved(graph: Any) -> None:
    for node in nodes_of(graph, "RotaryEmbedding"):
        set_attribute(node, "interleaved", 1)


def other_axis(graph: Any) -> None:
    set_attribute(nodes_of(graph, "Concat")[0], "axis", -1)


def other_cast(graph: Any) -> None:
    for node in nodes_of(graph, "Cast"):
        set_attribute(node, "to", onnx.TensorProto.BFLOAT16)


def other_constant(graph: Any) -> None:
    """Change a constant that the graph holds itself."""
    (one,) = [x for x in graph.initializer if not x.external_data and "." not in x.name][:1]
    array = numpy_helper.to_array(one)
    one.CopyFrom(numpy_helper.from_array(array + np.ones_like(array), one.name))


def other_layers_weight(graph: Any) -> None:
    node = reading(graph, "layers.1.self_attn.v_proj.weight")
    node.input[1] = "layers.0.self_attn.v_proj.weight"


def one_node_more(graph: Any) -> None:
    insert(graph, reading(graph, "norm.weight"), 0, ("Identity", [""], {}))


EDITS: dict[Edit, str] = {
    all_epsilons: "each has epsilon 0.001, expected 1e-06",
    one_epsilon: "has epsilon 1e-05, expected 1e-06",
    other_scale: "has scale 0.252, expected 0.25",
    interleaved: "has interleaved 1, expected 0",
    other_axis: "has axis -1, expected",
    other_cast: "has to 16, expected 1",
    other_constant: "constant ",
    other_layers_weight: "reads layers.0.self_attn.v_proj.weight, expected",
    one_node_more: "is there and should not be",
}


@pytest.mark.parametrize("name", ["fp32", "fp16"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_is_seen_in_every_precision(
    copy: Callable[[str], Path], name: str, edit: Edit
) -> None:
    if edit is other_cast and name == "fp32":
        return  # nothing is cast there
    for one in findings(edited(copy(name), edit)):
        assert not one
        assert EDITS[edit] in " ".join(one.sentences)
        assert len(one.sentences) < 4  # one cause, one finding


@pytest.mark.parametrize("edit", [all_epsilons, other_scale, interleaved, other_constant])
def test_an_edit_of_the_target_is_seen(copy: Callable[[str], Path], edit: Edit) -> None:
    folder = edited(copy("fp16"), edit, files="target")
    assert all(findings(folder))
    for one in findings(folder, "target"):
        assert EDITS[edit] in " ".join(one.sentences)


@pytest.mark.parametrize("edit", [one_epsilon, other_scale])
def test_parity_and_bisect_say_the_same_of_what_no_limit_shows(
    copy: Callable[[str], Path], edit: Edit
) -> None:
    folder = edited(copy("fp16"), edit)
    for command in ("parity", "bisect"):
        done = CliRunner().invoke(group, ["validate", command, str(folder)])
        assert done.exit_code == 3, done.output
        assert EDITS[edit].removeprefix("each ") in done.stdout
        assert "expected" in done.stdout
        parsed = CliRunner().invoke(group, ["validate", command, str(folder), "--json"])
        data = json.loads(parsed.stdout)
        assert data["same"] is False


def spoilt_tables(folder: Path, change: Callable[[str, Any], Any], graph: str = "draft") -> Path:
    """Change the rotary tables in a graph's data, of both its files."""
    model = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False)
    for one in model.graph.initializer:
        if one.name in ("rope.cos", "rope.sin"):
            place = {item.key: item.value for item in one.external_data}
            path, offset = folder / place["location"], int(place["offset"])
            data = np.memmap(path, np.float32, "r+", offset, tuple(one.dims))
            data[:] = change(one.name, np.array(data))
            data.flush()
            del data
    write_manifest(folder, replace(read_manifest(folder), files=hash_files(folder)))
    return folder


def of_another_theta(name: str, table: Any) -> Any:
    width = table.shape[1]
    angles = np.arange(len(table))[:, None] * 1e6 ** (-np.arange(width) / width)
    return np.cos(angles) if name == "rope.cos" else np.sin(angles)


def negated_late(name: str, table: Any) -> Any:
    sign = np.where(np.arange(len(table))[:, None] < 500, 1, -1)
    return table * sign if name == "rope.sin" else table


def a_little_faster(name: str, table: Any) -> Any:
    return np.roll(table, 1, axis=0) if name == "rope.cos" else table


@pytest.mark.parametrize("graph", ["draft", "target"])
@pytest.mark.parametrize("change", [of_another_theta, negated_late, a_little_faster])
def test_rotary_tables_are_compared_with_the_facts_over_all_positions(
    copy: Callable[[str], Path], change: Callable[[str, Any], Any], graph: str
) -> None:
    folder = spoilt_tables(copy("fp32"), change, graph)
    for one in findings(folder, graph):
        assert "is not that of theta 10000" in " ".join(one.sentences)
        if change is negated_late:
            assert len(one.sentences) == 1
            assert "from position 500" in one.sentences[0]


@pytest.mark.parametrize("command", ["parity", "bisect"])
def test_the_commands_name_wrong_tables(copy: Callable[[str], Path], command: str) -> None:
    folder = spoilt_tables(copy("fp32"), negated_late)
    done = CliRunner().invoke(group, ["validate", command, str(folder)])
    assert done.exit_code == 3, done.output
    assert "rope.sin is not that of theta 10000, type yarn: from position 500" in done.stdout


def yarn_of(**facts: Any) -> Callable[[DrafterSpec], DrafterSpec]:
    return lambda spec: replace(spec, rope=replace(spec.rope, **facts))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (yarn_of(theta=0.0), "rope.theta 0.0, expected a number above 1"),
        (yarn_of(theta=-1.0), "rope.theta -1.0"),
        (yarn_of(theta=float("nan")), "rope.theta nan"),
        (yarn_of(factor=None), "rope.type yarn without rope.factor"),
        (yarn_of(type="llama3"), "rope.type llama3 without rope.low_freq_factor"),
        (yarn_of(type="nonsense"), "rope.type 'nonsense'"),
        (yarn_of(rotary_dim=7), "rope.rotary_dim 7"),
        (lambda spec: replace(spec, activation="nonsense"), "activation 'nonsense'"),
        (lambda spec: replace(spec, num_heads=0), "num_heads 0, expected 1 or more"),
        (lambda spec: replace(spec, num_heads=3), "a multiple of num_kv_heads"),
        (lambda spec: replace(spec, mask_token_id=10**9), "mask_token_id 1000000000"),
        (lambda spec: replace(spec, layers=()), "layers: 0 entries, expected num_layers 2"),
        (lambda spec: replace(spec, family=Family.DFLASH2), "family dflash2 with no selector"),
        (lambda spec: replace(spec, target_layer_ids=()), "target_layer_ids []"),
        (lambda spec: replace(spec, embedding_scale=float("inf")), "embedding_scale inf"),
    ],
)
def test_facts_that_no_drafter_can_have_are_refused_by_name(
    bundles: Path, change: Callable[[DrafterSpec], DrafterSpec], told: str
) -> None:
    bundle = Bundle.open(bundles / "fp32")
    spec = change(bundle.drafter())
    wrong = Bundle(bundle.path, replace(bundle.manifest, drafter=spec))
    with pytest.raises(SpecError) as caught:
        module_from_bundle(wrong)
    assert told in caught.value.message
    with pytest.raises(SpecError):
        compare_with_facts(wrong, "draft")


OTHER: dict[str, Any] = {  # facts whose change is no number of the same kind
    "activation": "gelu",
    "attention_bias": True,
    "attention_k_eq_v": True,
    "confidence": None,
    "conv": None,
    "family": Family.DFLASH,
    "markov": None,
    "mask_embedding": True,
    "sample_from_anchor": False,
    "target_layer_ids": (1, 3, 4, 5),
    "final_logit_softcapping": 30.0,
}
WITHOUT_NODES = {  # where facts are from, what has a test of its own, what has no effect here
    *("backbone", "checkpoint_format", "dtype", "embed_source", "head_source", "layers", "rope"),
    *("sources", "warnings", "num_target_layers", "target_vocab_size", "vocab_map", "selector"),
    *("conv", "attention_k_eq_v", "draft_vocab_size"),  # one more row would be a padded one
}


def numbers_changed(spec: DrafterSpec) -> Iterator[tuple[str, DrafterSpec]]:
    """Yield a spec for each fact that makes nodes, that fact changed a little."""
    for one in fields(spec):
        value = getattr(spec, one.name)
        if one.name in WITHOUT_NODES:
            continue
        by: Any = value + 1 if isinstance(value, int) and not isinstance(value, bool) else None
        by = value * 1.01 if isinstance(value, float) else by
        changed: dict[str, Any] = {one.name: OTHER.get(one.name, by)}
        yield one.name, replace(spec, **changed)


def test_no_fact_that_makes_nodes_can_be_changed_unseen(bundles: Path) -> None:
    bundle = Bundle.open(bundles / "fp16")
    unseen = []
    for name, spec in numbers_changed(bundle.drafter()):
        manifest = replace(bundle.manifest, drafter=spec)
        try:
            if all(compare_with_facts(Bundle(bundle.path, manifest), "draft")):
                unseen.append(name)
        except DraftrtError:
            continue
    assert unseen == []


def test_layouts_and_windows_are_facts_too(bundles: Path) -> None:
    bundle = Bundle.open(bundles / "fp32")
    spec = bundle.drafter()
    layers = tuple(replace(layer, window=5) for layer in spec.layers)
    causal = tuple(replace(layer, is_causal=not layer.is_causal) for layer in spec.layers)
    for changed in (
        replace(spec, layers=layers),
        replace(spec, layers=causal),
        replace(spec, rope=replace(spec.rope, layout=RopeLayout.INTERLEAVED)),
        replace(spec, rope=replace(spec.rope, theta=1e6)),
        replace(spec, rope=replace(spec.rope, factor=4.1)),
        replace(spec, rope=replace(spec.rope, beta_slow=8.0)),
        replace(spec, rope=replace(spec.rope, attention_factor=1.1)),
        replace(spec, confidence=ConfidenceSpec(with_markov=False, has_bias=False)),
    ):
        manifest = replace(bundle.manifest, drafter=changed)
        try:
            found = compare_with_facts(Bundle(bundle.path, manifest), "draft")
        except BundleError:
            continue
        assert not any(found)


def stated(graph: str, **facts: Any) -> Callable[[Manifest], Manifest]:
    def change(manifest: Manifest) -> Manifest:
        entry = replace(manifest.graphs[graph], **facts)
        return replace(manifest, graphs={**manifest.graphs, graph: entry})

    return change


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        ("fp32", {"precision": Precision.FP16}, "are float32, expected float16 (fp16)"),
        ("fp32", {"precision": Precision.BF16}, "are float32, expected bfloat16 (bf16)"),
        ("fp16", {"precision": Precision.FP32}, "are float16, expected float32 (fp32)"),
        ("fp16", {"precision": Precision.BF16}, "are float16, expected bfloat16 (bf16)"),
        (
            "fp32",
            {"quantization": {Part.LINEAR: Scheme.INT8}},
            "got none, the manifest states linear int8",
        ),
        ("int8", {"quantization": {}}, "the manifest states none"),
        ("int8", {"quantization": {Part.LINEAR: Scheme.INT4}}, "states linear int4"),
        ("fp32", {"max_context": CONTEXT - 64}, "expected"),
        ("fp32", {"profile": "compat"}, "opset 24, expected 20"),
    ],
)
@pytest.mark.parametrize("graph", ["draft", "target"])
def test_a_manifest_that_misstates_its_graph_is_refused(
    bundles: Path, name: str, facts: dict[str, Any], told: str, graph: str
) -> None:
    bundle = Bundle.open(bundles / name)
    wrong = Bundle(bundle.path, stated(graph, **facts)(bundle.manifest))
    with pytest.raises(BundleError) as caught:
        compare_with_facts(wrong, graph)
    assert told in caught.value.message


@pytest.mark.parametrize("command", ["parity", "bisect"])
def test_the_commands_refuse_a_misstated_precision(
    copy: Callable[[str], Path], command: str
) -> None:
    folder = restated(copy("fp32"), stated("draft", precision=Precision.FP16))
    done = CliRunner().invoke(group, ["validate", command, str(folder)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is not the graph that the manifest describes" in done.stderr


def test_a_bundle_of_another_version_has_its_nodes_told_as_not_compared(
    copy: Callable[[str], Path],
) -> None:
    folder = edited(copy("fp32"), one_epsilon)
    restated(folder, lambda one: replace(one, tools={**one.tools, "draftrt": "0.0.1"}))
    for one in findings(folder):
        assert one.note == (
            f"{one.file} was written by draftrt 0.0.1, this is 0.1.0: its nodes may be others, "
            "and are not compared one by one"
        )
