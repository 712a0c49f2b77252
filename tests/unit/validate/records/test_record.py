"""`draftrt validate record`: what it writes is checked anywhere, and only where it belongs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import read_target
from draftrt.validate.records.cases import table_hash
from draftrt.validate.records.record import RecordOptions, record_case
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

REDUCED = ToyDrafter(
    kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96, sliding_window=20, markov_type="gated"
)
BORROWING = ToyDrafter(kind=Kind.ZLAB_DFLASH)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


def cli(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["validate", *map(str, arguments)])


def golden(*arguments: object) -> Result:
    return cli("golden", "--backend", "pytorch", *arguments)


def change(case: Path, name: str, by: float) -> None:
    with np.load(case / "expected.npz") as stored:
        arrays = dict(stored)
    arrays[name] = (arrays[name] + by).astype(arrays[name].dtype)
    np.savez(case / "expected.npz", **arrays)


def test_a_record_holds_what_it_takes_and_is_the_same_again(target: Path, tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "draft", REDUCED)
    case = tmp_path / "case"
    done = cli("record", draft, "--target", target, "-o", case, "--rounds", 5, "--about", "a toy")
    assert done.exit_code == 0, done.output
    facts = json.loads((case / "case.json").read_text())
    assert (facts["version"], facts["about"]) == (2, "a toy")
    assert "draftrt's PyTorch module, float32" in facts["reference"]
    assert "seed 0" in facts["reference"]
    weights = (draft / "model.safetensors").read_bytes()
    assert facts["checkpoint"]["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert (case / "draft" / "model.safetensors").read_bytes() == weights
    with np.load(case / "expected.npz") as stored:
        shapes = {name: stored[name].shape for name in stored.files}
    assert {name.split(".")[0] for name in shapes if "." in name} == {f"r{n}" for n in range(5)}
    drafts = shapes["r0.tokens"][0]
    rows = [shapes[f"r{n}.target_hidden"][1] for n in range(5)]
    assert rows == [23, 1, 1 + drafts // 2, 1 + drafts, 1]  # 23: past the window of 20
    assert {"r0.draft_ids", "r0.hidden", "r0.base_logits", "r0.logits"} <= set(shapes)
    again = golden(case)
    assert again.exit_code == 0, again.output
    assert "same ids, 0.0e+00" in again.stdout


@pytest.mark.parametrize(
    ("array", "by"), [("r3.tokens", 1), ("r2.logits", 0.01), ("r1.target_hidden", 0.5)]
)
def test_a_changed_record_is_a_difference(
    target: Path, tmp_path: Path, array: str, by: float
) -> None:
    case = record_case(
        write_drafter(tmp_path / "draft", REDUCED), target, tmp_path / "case", RecordOptions()
    )
    change(case, array, by)
    done = golden(case)
    assert done.exit_code == 3, done.output


def test_another_checkpoint_in_the_record_is_not_checked(target: Path, tmp_path: Path) -> None:
    case = record_case(
        write_drafter(tmp_path / "draft", REDUCED), target, tmp_path / "case", RecordOptions()
    )
    file = case / "draft" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    done = golden(case)
    assert done.exit_code == 1
    assert "made from another checkpoint" in done.stderr
    assert f"expected {json.loads((case / 'case.json').read_text())['checkpoint'][file.name]}" in (
        done.stderr
    )


def test_a_record_by_hash_needs_the_very_drafter_and_target(target: Path, tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "draft", BORROWING)
    case = tmp_path / "case"
    done = cli("record", draft, "--target", target, "-o", case, "--weights", "hash")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in case.iterdir()) == ["case.json", "expected.npz"]
    assert (case / "expected.npz").stat().st_size < (draft / "model.safetensors").stat().st_size
    both = ("--draft", draft, "--target", target)
    assert golden(case, *both).exit_code == 0
    other_draft = write_drafter(tmp_path / "other", ToyDrafter(kind=Kind.ZLAB_DFLASH, seed=9))
    other_target = write_target(tmp_path / "other-target", ToyTarget(seed=9))
    for arguments, message in (
        ((), "holds the hashes of its drafter, not the drafter"),
        (("--draft", draft), "holds the hashes of the target's embed_tokens and lm_head"),
        (("--draft", other_draft, "--target", target), "made from another checkpoint"),
        (("--draft", draft, "--target", other_target), "made with another target"),
    ):
        done = golden(case, *arguments)
        assert done.exit_code == 1, done.output
        assert message in done.stderr


def test_a_table_hash_covers_shape_and_values_whatever_the_type(target: Path) -> None:
    import torch

    from draftrt.export.checkpoint.tensors import from_tensor

    table = torch.arange(24, dtype=torch.float32).reshape(6, 4)
    kept = {from_tensor("t", x) for x in (table, table.half(), table.bfloat16())}
    expected = hashlib.sha256(b"float32 [6, 4]" + table.numpy().tobytes()).hexdigest()
    assert {table_hash(one) for one in kept} == {expected}
    assert table_hash(from_tensor("t", table.reshape(4, 6))) != expected


def test_a_wide_vocabulary_is_recorded_by_its_largest_logits(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftrt.validate.records.record.MAX_LOGITS_WIDTH", 50)
    draft = write_drafter(tmp_path / "draft", REDUCED)
    case = record_case(draft, target, tmp_path / "case", RecordOptions(num_rounds=2))
    with np.load(case / "expected.npz") as stored:
        arrays = dict(stored)
    assert "r0.logits" not in arrays
    assert "r0.base_logits" not in arrays
    assert "r0.hidden" in arrays
    assert arrays["r0.top_ids"].shape == arrays["r0.top_logits"].shape == (4, 16)
    assert (arrays["r0.top_ids"][:, 0] == arrays["r0.draft_ids"]).all()
    assert golden(case).exit_code == 0
    change(case, "r1.top_logits", 0.01)
    done = golden(case)
    assert done.exit_code == 3
    assert "r1.top_logits differs by 1.0e-02" in done.stdout


def test_what_is_there_is_not_replaced(target: Path, tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "draft", REDUCED)
    (tmp_path / "case").mkdir()
    done = cli("record", draft, "--target", target, "-o", tmp_path / "case")
    assert done.exit_code == 1
    assert "records are not replaced" in done.stderr
    shutil.rmtree(tmp_path / "case")
    done = cli("record", draft, "--target", draft, "-o", tmp_path / "case")
    assert done.exit_code == 1
    assert not (tmp_path / "case").exists()


def test_tables_are_stored_as_the_target_has_them(target: Path, tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "draft", BORROWING)
    case = record_case(draft, target, tmp_path / "case", RecordOptions(num_rounds=1))
    model = read_target(target)
    assert load_drafter(draft, model).spec.embed_source.value == "target"
    with np.load(case / "expected.npz") as stored:
        embedding = stored["embed_tokens"]
    assert np.array_equal(embedding, model.tables["embed_tokens.weight"].read().float().numpy())


def test_a_family_and_alignment_that_were_stated_are_part_of_the_record(
    target: Path, tmp_path: Path
) -> None:
    draft = write_drafter(
        tmp_path / "draft",
        ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, overrides={"architectures": ["SomeForksDraftModel"]}),
    )
    case = tmp_path / "case"
    words = ["record", draft, "--target", target, "-o", case]
    assert "--family" in cli(*words).stderr
    done = cli(*words, "--family", "dspark", "--sample-from-anchor")
    assert done.exit_code == 0, done.output
    facts = json.loads((case / "case.json").read_text())
    assert (facts["family"], facts["sample_from_anchor"]) == ("dspark", True)
    done = golden(case)
    assert done.exit_code == 0, done.output
    for key, value, says in [
        ("family", "eagle", "family: got 'eagle', expected one of"),
        ("sample_from_anchor", 1, "sample_from_anchor: got 1, expected true or false"),
    ]:
        (case / "case.json").write_text(json.dumps({**facts, key: value}))
        assert says in golden(case).stderr
    del facts["family"]
    (case / "case.json").write_text(json.dumps(facts))
    assert "not a supported drafter" in golden(case).stderr


@pytest.mark.parametrize("option", ["--family=dspark", "--no-sample-from-anchor"])
def test_a_record_of_a_target_has_no_family(target: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "prompts").write_text("a\n")
    words = ["--target", target, "-o", tmp_path / "c", "--prompts", tmp_path / "prompts"]
    done = cli("record", *words, "--taps", "0", option)
    assert done.exit_code == 2
    assert "are for a drafter" in done.stderr
