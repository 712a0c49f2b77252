"""A manifest that was edited, checksum and all, gets one sentence from every command."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from draftrt.bundle import Bundle
from draftrt.bundle_files import ACTIVATIONS as KNOWN
from draftrt.cli import group
from draftrt.errors import BackendError, BundleError
from draftrt.export.graph.files import read_initialisers
from draftrt.export.models.ops import ACTIVATIONS
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.targets.huggingface import HfTarget

COMMANDS = (
    ("run", "--prompt", "a", "--max-tokens", "2"),
    ("inspect",),
    ("plan",),
    ("verify",),
    ("validate", "parity"),
    ("build", "--sm", "86"),
)
VALUES = (-1, 0, 3, 10**10, 10**400, 1e308, "x", "\x1b[31m", "/etc/passwd", "../x", "y" * 5000)
DRAFT = ("graphs", "draft", "signature")


@pytest.fixture(scope="module")
def bundle(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited")
    return export_bundle(
        assets / "tiny-dspark", assets / "tiny-target", folder / "bundle", ExportOptions()
    )


@pytest.fixture
def content(bundle: Path) -> Iterator[dict[str, Any]]:
    """The manifest's content without its checksum; the file is put back at the end."""
    path = bundle / "manifest.json"
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    del found["checksum"]
    yield found
    path.write_text(text, encoding="utf-8")


def run(words: tuple[str, ...], bundle: Path) -> Result:
    at = 2 if words[0] == "validate" else 1
    line = [*words[:at], str(bundle), *words[at:]]
    return CliRunner().invoke(group, line, catch_exceptions=False)


def put(content: dict[str, Any], way: tuple[str | int, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    at: Any = changed
    for step in way[:-1]:
        at = at[step]
    at[way[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("drafter", "rms_norm_eps"), 10**400, "an integer of 1329 bits"),
        (("drafter", "block_size"), 3, "draft_ids: got shape [1, 7]"),
        (("drafter", "num_heads"), 0, "num_heads: got 0"),
        (("drafter", "mask_token_id"), -1, "mask_token_id: got -1"),
        (("drafter", "layers"), [], "layers: got 0, expected 2"),
        (("drafter", "family"), "nonsense", "one of ['dflash'"),
        (("drafter", "confidence"), None, "the drafter has no such head"),
        (("drafter", "activation"), "nonsense", "activation: got 'nonsense'"),
        (("graphs", "draft", "file"), "y" * 5000, "got a name of 5000 bytes"),
        (("graphs", "draft", "file"), "\ud800", "no Unicode text"),
        (("graphs", "draft", "flexible"), "/tmp/x.onnx", "expected a path inside the bundle"),
        (("graphs", "target", "flexible"), "../x.onnx", "expected a path inside the bundle"),
        (("graphs", "draft", "file"), "other.onnx", "other.onnx is not in files"),
        (("files", "/etc/passwd"), {"bytes": 1, "sha256": "0"}, "expected a path inside"),
        ((*DRAFT, "inputs", 0, "dtype"), "nonsense", "got dtype 'nonsense'"),
        ((*DRAFT, "inputs", 1, "shape"), [1, "Q", 5], "got the size 'Q'"),
        ((*DRAFT, "inputs", 3, "shape"), [1, 2], "which is no input of its shape"),
        ((*DRAFT, "inputs", 0, "shape"), [-1], "got a size of -1"),
        ((*DRAFT, "inputs", 0, "shape"), [10**10], "got a size of 10000000000"),
        (("graphs", "draft", "max_context"), 10**10, "max_context: got 10000000000"),
        (("graphs", "target", "signature", "dimensions"), {}, "got the size 'R'"),
        (("command",), "\ud800", "expected Unicode text"),
    ],
)
def test_what_cannot_be_so_is_named(
    way: tuple[str | int, ...], value: object, said: str, content: dict[str, Any], bundle: Path
) -> None:
    (bundle / "manifest.json").write_text(json.dumps(put(content, way, value)))
    with pytest.raises(BundleError) as refusal:
        Bundle.open(bundle)
    assert said in refusal.value.message
    assert str(bundle / "manifest.json") in refusal.value.message


def test_crossed_caches_are_named(content: dict[str, Any], bundle: Path) -> None:
    outputs = content["graphs"]["target"]["signature"]["outputs"]
    one, other = (next(o for o in outputs if o["name"] == f"present_key_{i}") for i in (0, 1))
    one["alias"], other["alias"] = other["alias"], one["alias"]
    (bundle / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match="expected that of its own past"):
        Bundle.open(bundle)


def test_the_activations_are_those_of_the_export() -> None:
    assert set(KNOWN) == set(ACTIVATIONS)


def places(value: object, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
    for step, inner in entries:
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*way, step))
        else:
            yield (*way, step)


def check_mutations(content: dict[str, Any], bundle: Path, seed: int, count: int) -> None:
    """Change one value at a time: a command ends in a status, and in an error with a sentence."""
    draw, every = random.Random(seed), list(places(content))
    for _ in range(count):
        way, value = draw.choice(every), draw.choice(VALUES)
        (bundle / "manifest.json").write_text(json.dumps(put(content, way, value)))
        done = run(draw.choice(COMMANDS), bundle)
        assert done.exit_code in (0, 1, 2, 3), (way, value)
        assert done.exit_code == 0 or "Error: " in done.stderr, (way, value)
        assert "\x1b" not in done.output, (way, value)


def test_no_mutation_ends_in_a_traceback(content: dict[str, Any], bundle: Path) -> None:
    check_mutations(content, bundle, seed=1, count=25)


@pytest.mark.extended
def test_none_of_many_mutations_ends_in_a_traceback(content: dict[str, Any], bundle: Path) -> None:
    check_mutations(content, bundle, seed=2, count=300)


def hub_cache(bundle: Path, root: Path) -> Path:
    """Lay a bundle out as the cache of the Hugging Face hub does; return the snapshot."""
    snapshot, blobs = root / "models--a--b" / "snapshots" / "1", root / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(one for one in sorted(bundle.rglob("*")) if one.is_file()):
        shutil.copyfile(path, blobs / f"{number:040x}")
        place = snapshot / path.relative_to(bundle)
        place.parent.mkdir(parents=True, exist_ok=True)
        up = "/".join([".."] * (2 + len(path.relative_to(bundle).parts) - 1))
        place.symlink_to(f"{up}/blobs/{number:040x}")
    return snapshot


@pytest.mark.parametrize(
    "words",
    [one for one in COMMANDS if one[0] != "build"],
    ids=lambda words: words[0],
)
def test_a_bundle_behind_symbolic_links_works(
    words: tuple[str, ...], bundle: Path, tmp_path: Path
) -> None:
    snapshot = hub_cache(bundle, tmp_path)
    (tmp_path / "link").symlink_to(snapshot)
    for place in (snapshot, tmp_path / "link"):
        done = run(words, place)
        assert done.exit_code == 0, done.output


def test_a_link_out_of_the_bundle_and_other_kinds_of_files_are_refused(
    bundle: Path, tmp_path: Path
) -> None:
    whole = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    place = whole / "target.onnx.data"
    outside = tmp_path / "outside"
    shutil.copyfile(place, outside)
    place.unlink()
    place.symlink_to(outside)
    with pytest.raises(BundleError, match="is a symbolic link out of the bundle"):
        Bundle.open(whole)
    place.unlink()
    place.mkdir()
    with pytest.raises(BundleError, match="is a folder, expected a file"):
        Bundle.open(whole)


def test_weights_outside_the_folder_are_not_read(bundle: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(bundle / "draft.onnx"), load_external_data=False)
    shutil.copyfile(bundle / "draft.onnx.data", tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    for location in ("../outside", str(tmp_path / "outside"), "/dev/zero"):
        for tensor in model.graph.initializer:
            for item in tensor.external_data:
                if item.key == "location":
                    item.value = location
        onnx.save(model, str(inside / "draft.onnx"))
        with pytest.raises(BundleError, match="expected a path inside the bundle"):
            read_initialisers(inside / "draft.onnx")


def test_a_target_in_pickles_is_refused_before_anything_is_loaded(
    assets: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "target"
    shutil.copytree(assets / "tiny-target", folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BackendError, match=r"pickles \(pytorch_model\.bin\), expected safetensors"):
        HfTarget(folder)


def test_another_revision_of_the_target_is_told(bundle: Path, assets: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(assets / "tiny-target", other)
    weights = load_file(other / "model.safetensors")
    name = sorted(weights)[len(weights) // 2]
    line = ("run", "--prompt", "a", "--max-tokens", "2", "--target")
    same = run((*line, str(other)), bundle)
    assert (same.exit_code, "warning" in same.stderr) == (0, False)
    save_file(weights | {name: weights[name] * 1.3}, other / "model.safetensors", {"format": "pt"})
    done = run((*line, str(other)), bundle)
    assert done.exit_code == 0
    assert f"1 of {len(weights)} tensors are not those of the target" in done.stderr
    assert name in done.stderr
