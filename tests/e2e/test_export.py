"""`draftrt export`: a bundle, or an error before any work and nothing written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.spec import Family
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.e2e
EXTRA = ["logits", "hidden"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))


def export(draft: Path, target: Path, out: Path, *options: str) -> Result:
    line = ["export", str(draft), "--target", str(target), "-o", str(out), *options]
    return CliRunner().invoke(group, line, catch_exceptions=False)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.slow
def test_a_drafter_becomes_a_bundle_and_force_replaces_it(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "bundle"
    out.mkdir(parents=True)
    (out / "manifest.json").write_text("{}")
    outputs = [word for name in EXTRA for word in ("--outputs", name)]
    context = ("--max-context", "40", "--graph", "compat")
    refused = export(draft, target, out, *context)
    assert refused.exit_code == 1
    assert "pass --force" in refused.stderr
    done = export(draft, target, out, *context, *outputs, "--force", "--no-target-graph")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{out}\n"
    assert "trace: dflash, 2 layers, fp32, max_context 40" in done.stderr
    bundle = Bundle.open(out)
    bundle.verify_hashes()
    spec, entry = bundle.drafter(), bundle.graph("draft")
    assert spec.family is Family.DFLASH
    assert (entry.profile, entry.opset, entry.max_context) == ("compat", 20, 40)
    names = entry.signature.output_names()
    assert names[:3] == ("draft_ids", "hidden", "logits")
    stored = {path.name for path in (out / "tokenizer").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= stored
    assert list(out.parent.iterdir()) == [out]


def unknown_key(draft: Path, target: Path) -> None:
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"surprise": 1}))


def shallow_target(draft: Path, target: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def no_tokenizer(draft: Path, target: Path) -> None:
    (target / "tokenizer.json").rename(target / "tokenizer.model")


def broken_tokenizer(draft: Path, target: Path) -> None:
    (target / "tokenizer.json").write_text('{"model": {"vocab": 3}}')


def other_tokenizer(draft: Path, target: Path) -> None:
    path = target / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"] = {"a": 0, "b": 264}
    path.write_text(json.dumps(data))


def cut_template(draft: Path, target: Path) -> None:
    path = target / "chat_template.jinja"
    path.write_text(path.read_text().rpartition("%}")[0])


def cut_tokenizer_config(draft: Path, target: Path) -> None:
    (target / "tokenizer_config.json").write_text('{"chat_template": ')


def pickled_target(draft: Path, target: Path) -> None:
    (target / "model.safetensors").rename(target / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (unknown_key, ("does not know: ['surprise']", "--ignore-key NAME")),
        (shallow_target, ("got layers [3, 4], expected at most 2", "num_target_layers")),
        (no_tokenizer, ("no tokenizer.json, found", "tokenizer.model", "save_pretrained")),
        (broken_tokenizer, ("not a tokenizer file",)),
        (other_tokenizer, ("ids from 0 to 264, expected 0 to 263", "another model")),
        (cut_template, ("unbalanced template tags", "cut short")),
        (cut_tokenizer_config, ("tokenizer_config.json: cannot be read as JSON",)),
        (pickled_target, ("only pickled weights found (pytorch_model.bin)",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_refused_pair_leaves_nothing_behind(
    damage: Callable[[Path, Path], None],
    says: tuple[str, ...],
    draft: Path,
    target: Path,
    tmp_path: Path,
) -> None:
    damage(draft, target)
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept.txt").write_text("kept")
    before = files_below(tmp_path)
    for place in (out / "bundle", tmp_path / "new" / "deeper" / "bundle"):
        result = export(draft, target, place)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert not [text for text in says if text not in result.stderr], result.stderr
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("force", [False, True], ids=["", "with --force"])
def test_a_folder_that_is_no_bundle_is_never_replaced(
    force: bool, draft: Path, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    before = files_below(tmp_path)
    result = export(draft, target, out, *(["--force"] if force else []))
    assert result.exit_code == 1
    assert "exists" in result.stderr
    assert files_below(tmp_path) == before


def test_a_context_without_room_for_a_block_is_refused(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    before = files_below(tmp_path)
    result = export(draft, target, tmp_path / "bundle", "--max-context", "6", "--no-target-graph")
    assert result.exit_code == 1
    assert "max_context: got 6, expected at least 7" in result.stderr
    assert "raise --max-context" in result.stderr
    assert files_below(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["trace:", "write: draft.onnx"])
def test_an_interrupt_while_files_are_written_leaves_nothing(
    moment: str, root: Path, draft: Path, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = files_below(tmp_path)
    command = [sys.executable, "-m", "draftrt", "export", str(draft), "--target", str(target)]
    command += ["-o", str(out / "bundle"), "--max-context", "40", "--no-target-graph"]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith(moment):
                assert files_below(tmp_path) != before, "it must come while files lie there"
                run.send_signal(signal.SIGINT)
                break
        tail = run.stderr.read()
        assert run.wait(timeout=60) != 0
    assert "Traceback" not in tail
    assert "bundle:" not in tail
    assert files_below(tmp_path) == before
