"""Opening a bundle: which target runs, and which ids end a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from draftrt import provenance
from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.errors import BackendError, BundleError, SpecError
from draftrt.files import count_weights
from draftrt.manifest import GraphEntry, Manifest
from draftrt.runtime.load import check_memory, load, read_stop_ids
from draftrt.signature import cache_bytes
from draftrt.spec import Precision
from tests.toys.safetensors_file import write_tensors

WriteBundle = Callable[..., Path]


@pytest.fixture
def write_bundle(toy: SimpleNamespace, tmp_path: Path) -> WriteBundle:
    """Writes a bundle whose graph file is no graph: nothing here gets as far as opening it."""

    def write(target_path: str = "", eos: object = ...) -> Path:
        folder = tmp_path / "bundle"
        (folder / "tokenizer").mkdir(parents=True)
        if eos is not ...:
            text = json.dumps({"eos_token_id": eos})
            (folder / "tokenizer" / "generation_config.json").write_text(text)
        (folder / "draft.onnx").write_bytes(b"no graph")
        (folder / "draft.onnx.data").touch()
        entry = GraphEntry(
            file="draft.onnx",
            data="draft.onnx.data",
            precision=Precision.FP32,
            profile="fixed",
            opset=24,
            max_context=40,
            signature=toy.signature(4, 5, 40, confidence=False),
        )
        write_manifest(
            folder,
            Manifest(
                drafter=toy.spec(),
                target=toy.target_spec(),
                graphs={"draft": entry},
                files=hash_files(folder),
                inputs={},
                tools={},
                command="test",
                created="2026-01-01T00:00:00Z",
                target_path=target_path,
            ),
        )
        return folder

    return write


def test_without_a_target_the_option_is_named(write_bundle: WriteBundle) -> None:
    with pytest.raises(BackendError, match="no target to run: none is recorded") as refusal:
        load(write_bundle())
    assert "--target" in refusal.value.hint


def test_a_recorded_target_that_is_gone_is_named(write_bundle: WriteBundle) -> None:
    with pytest.raises(BackendError, match="no target to run: /no/such/model is not there"):
        load(write_bundle("/no/such/model"))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_target_of_another_shape_is_refused_before_anything_is_loaded(
    write_bundle: WriteBundle, tmp_path: Path, recorded: bool
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(
        json.dumps(
            {
                "num_hidden_layers": 4,
                "hidden_size": 5,
                "vocab_size": 23,
                "max_position_embeddings": 64,
            }
        )
    )
    bundle = write_bundle(str(other) if recorded else "")
    with pytest.raises(SpecError, match="hidden_size is 5, expected 3"):
        load(bundle, target=None if recorded else other)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no manifest\.json there"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("eos", "expected"),
    [(..., {5, 6}), (None, {5, 6}), (7, {7}), (0, {0}), ([7, 8], {7, 8})],
    ids=["no file", "null", "one", "zero", "list"],
)
def test_the_generation_configs_end_tokens_win(
    write_bundle: WriteBundle, eos: object, expected: set[int]
) -> None:
    assert read_stop_ids(Bundle.open(write_bundle(eos=eos))) == expected


def test_a_broken_generation_config_is_named(write_bundle: WriteBundle) -> None:
    folder = write_bundle(eos=1)
    for content in ("{", "[]", '{"eos_token_id": "2"}', '{"eos_token_id": [-1]}'):
        (folder / "tokenizer" / "generation_config.json").write_text(content)
        write_manifest(folder, replace(read_manifest(folder), files=hash_files(folder)))
        with pytest.raises(
            BundleError, match=r"generation_config\.json: (cannot be read|got|eos_token_id: got)"
        ):
            read_stop_ids(Bundle.open(folder))


def test_a_target_without_a_graph_of_its_own_needs_its_folder(write_bundle: WriteBundle) -> None:
    folder = write_bundle()
    write_manifest(folder, replace(Bundle.open(folder).manifest, drafter=None, graphs={}))
    with pytest.raises(BackendError, match="no target to run: none is recorded"):
        load(folder)


def test_a_port_that_cannot_be_is_refused(write_bundle: WriteBundle, tmp_path: Path) -> None:
    folder = write_bundle()
    with pytest.raises(BundleError, match="bundle: holds no target graph") as refusal:
        load(folder, target_port="graph")
    assert "--target-graph" in refusal.value.hint
    with pytest.raises(BackendError, match="a target folder was given"):
        load(folder, target_port="graph", target=tmp_path)
    with pytest.raises(BackendError, match=r"no target port 'torch', there is \['graph', 'hf'\]"):
        load(folder, target_port="torch")


def test_weights_and_caches_of_all_models_are_counted_against_the_memory_there_is(
    toy: SimpleNamespace,
    write_bundle: WriteBundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, memory = write_bundle(), tmp_path / "meminfo"
    monkeypatch.setattr(provenance, "MACHINE", memory)
    opened = Bundle.open(folder)
    draft = replace(opened.graph("draft"), signature=toy.signature(4, 5, 9999, confidence=False))
    caches = cache_bytes(draft.signature)
    assert caches > 4096
    weights = 3 * 10**9
    target = tmp_path / "target"
    target.mkdir()
    write_tensors(target / "model.safetensors", {"a": ("F16", np.zeros((5, 7), np.float16))})
    assert count_weights(target) == 35

    def problem(free: int, *, flexible: str = "", folder: Path | None = None, **how: bool) -> str:
        memory.write_text(f"MemTotal: 99 kB\nMemAvailable: {free // 1024} kB\n")
        entry = replace(draft, weight_bytes=weights, flexible=flexible)
        manifest = replace(opened.manifest, graphs={"draft": entry, "target": entry})
        try:
            check_memory(Bundle(opened.path, manifest), folder, **how)
        except BackendError as error:
            return str(error)
        return ""

    both = 2 * (weights + caches)
    assert not problem(both + 2048)
    told = problem(both - 2048)
    assert "bundle takes about 6.0 GB, this process can have 6.0 GB; draft graph 3.0 GB, " in told
    assert "--map-weights leaves weights in their files" in told
    assert problem(2 * weights + 2048)  # the caches too
    assert not problem(2 * weights + 2048, flexible="draft.flexible.onnx")  # which grow there
    assert not problem(2 * caches + 2048, map_weights=True)
    assert "--map-weights" not in problem(0, map_weights=True)
    assert not problem(0, is_planned=True)
    assert not problem(weights + caches + 4 * 35 + 2048, folder=target)
    told = problem(weights + caches + 4 * 35 - 2048, folder=target)
    assert "draft graph 3.0 GB, target in PyTorch 0.0 GB" in told
    memory.unlink()  # nobody tells
    entry = replace(draft, weight_bytes=10**18)
    check_memory(Bundle(opened.path, replace(opened.manifest, graphs={"draft": entry})), None)
