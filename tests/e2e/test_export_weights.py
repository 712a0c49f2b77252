"""Weights of a bundle: copied, shared between its graphs, or linked; and checked by samples."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import BundleError
from draftrt.export.options import ExportOptions, WeightMode
from draftrt.export.pipeline import export_bundle
from draftrt.files import sample_sha256, sha256_of
from draftrt.runtime.load import open_graph
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("weights")]
CONTEXT = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair in float32, and its bundles ``copied``, ``linked`` and ``hashed``."""
    folder = tmp_path_factory.mktemp("weights")
    write_target(folder / "target", ToyTarget(dtype="float32"))
    write_drafter(folder / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH, dtype="float32"))
    link = ["--weights", "link"]
    kinds = {"copied": [], "linked": link, "hashed": [*link, "--hash", "full"]}
    for name, options in kinds.items():
        line = ["export", str(folder / "draft"), "--target", str(folder / "target")]
        line += ["-o", str(folder / name), "--max-context", str(CONTEXT), *options]
        done = CliRunner().invoke(group, line, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    return folder


def drafts(path: Path) -> Any:
    bundle = Bundle.open(path)
    rng = np.random.default_rng(3)
    with open_graph(bundle) as session:
        feeds = {
            "anchor": np.array([5]),
            "target_hidden": rng.standard_normal((1, 4, bundle.drafter().feature_size)).astype("f"),
            "context_length": np.zeros(1, np.int64),
        }
        return session.run(feeds, rows=16)["draft_ids"]


def places(path: Path, file: str) -> dict[str, tuple[str, int]]:
    import onnx

    graph = onnx.load(str(path / file), load_external_data=False).graph
    found = {}
    for tensor in graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            found[tensor.name] = (place["location"], int(place["offset"]))
    return found


def test_tables_that_both_graphs_use_are_stored_once(folder: Path) -> None:
    bundle = Bundle.open(folder / "copied")
    table, head = "model.embed_tokens.weight", "lm_head.weight"
    assert bundle.graph("target").borrowed == dict.fromkeys((table, head), "draft.onnx.data")
    draft, target = (places(folder / "copied", f"{name}.onnx") for name in ("draft", "target"))
    assert target[table] == draft["embed_tokens.weight"]
    assert target[head] == draft[head]
    assert bundle.graph("draft").borrowed == {}
    bundle.verify_hashes()
    assert bundle.manifest.files["draft.onnx.data"].sha256 == sha256_of(
        folder / "copied" / "draft.onnx.data"
    )


def test_a_linked_bundle_computes_the_same_from_the_checkpoints_own_bytes(folder: Path) -> None:
    assert (drafts(folder / "linked") == drafts(folder / "copied")).all()
    bundle = Bundle.open(folder / "linked")
    links = bundle.manifest.links
    assert sorted(links) == ["linked/draft-model.safetensors", "linked/target-model.safetensors"]
    for name, entry in links.items():
        source = Path(entry.source)
        assert (folder / "linked" / name).stat().st_ino == source.stat().st_ino
        assert entry.bytes == source.stat().st_size
    found = places(folder / "linked", "draft.onnx")
    assert found["layers.0.mlp.up_proj.weight"][0] == "linked/draft-model.safetensors"
    assert found["rope.cos"][0] == "draft.onnx.data"
    held = sum(entry.bytes for name, entry in bundle.manifest.files.items() if "data" in name)
    assert held < 0.1 * sum(entry.bytes for entry in links.values())


def test_mapped_weights_give_the_same_text(folder: Path) -> None:
    line = ["run", str(folder / "copied"), "--prompt", "ab", "--max-tokens", "12", "--ignore-eos"]
    packed = CliRunner().invoke(group, line, catch_exceptions=False)
    mapped = CliRunner().invoke(group, [*line, "--map-weights"], catch_exceptions=False)
    assert (packed.exit_code, mapped.exit_code) == (0, 0)
    assert mapped.stdout == packed.stdout
    refused = CliRunner().invoke(group, [*line, "--map-weights", "--backend", "tensorrt-rtx"])
    assert refused.exit_code == 1
    assert "mapped weights: got tensorrt-rtx on cuda, expected onnxruntime on cpu" in refused.stderr


def test_a_linked_checkpoint_is_hashed_whole_where_that_is_asked_for(folder: Path) -> None:
    bundle = Bundle.open(folder / "hashed")
    for entry in bundle.manifest.links.values():
        assert entry.sha256 == sha256_of(Path(entry.source))
    bundle.verify_hashes()
    source = folder / "draft" / "model.safetensors"
    assert bundle.manifest.inputs["draft/model.safetensors"] == sha256_of(source)
    inputs = Bundle.open(folder / "copied").manifest.inputs
    assert inputs["draft/model.safetensors, sampled"] == sample_sha256(source)
    assert "draft/model.safetensors" not in inputs


def test_small_linked_files_are_hashed_whole_without_being_asked_for(folder: Path) -> None:
    bundle = Bundle.open(folder / "linked")
    for entry in bundle.manifest.links.values():
        assert entry.sha256 == sha256_of(Path(entry.source))


def test_large_linked_files_are_sampled_and_noticed_once_they_were_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftrt.export.weights.storage.HASHED_BYTES", 1 << 10)
    draft, out = tmp_path / "draft", tmp_path / "bundle"
    shutil.copytree(folder / "draft", draft)
    options = ExportOptions(weights=WeightMode.LINK, max_context=64)
    bundle = Bundle.open(export_bundle(draft, folder / "target", out, options))
    entry = bundle.manifest.links["linked/draft-model.safetensors"]
    assert (entry.sha256, entry.sample_sha256) == ("", sample_sha256(Path(entry.source)))
    result = CliRunner().invoke(group, ["verify", str(out)])
    assert "no hash of every byte" in result.output
    flip(draft / "model.safetensors")
    with pytest.raises(BundleError, match="linked from"):
        Bundle.open(out)


def flip(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))


def cut(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 8)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip, r"model.safetensors \(linked from .*got sha256 \w+…, expected"),
        (cut, "bytes, expected"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_changed_checkpoint_is_noticed_when_a_linked_bundle_is_opened(
    damage: Callable[[Path], None], says: str, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(folder / "linked", copy)
    Bundle.open(copy)
    damage(copy / "linked" / "draft-model.safetensors")
    with pytest.raises(BundleError, match=says) as caught:
        Bundle.open(copy)
    assert "--weights copy" in caught.value.hint
    result = CliRunner().invoke(group, ["build", str(copy), "--sm", "86"])
    assert result.exit_code == 1
    assert "linked from" in result.stderr


@pytest.mark.needs("a file system of its own at /dev/shm")
def test_a_link_across_file_systems_is_refused_and_nothing_left(
    folder: Path, tmp_path: Path
) -> None:
    elsewhere = Path("/dev/shm")
    out = elsewhere / f"draftrt-{tmp_path.name}" / "bundle"
    line = ["export", str(folder / "draft"), "--target", str(folder / "target")]
    result = CliRunner().invoke(group, [*line, "-o", str(out), "--weights", "link"])
    assert result.exit_code == 1
    assert "it lies on another file system" in result.stderr
    assert "--weights copy" in result.stderr
    assert not out.parent.exists()
