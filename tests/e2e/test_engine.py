"""`draftrt engine`: a pair to a checked bundle with a plan, and refusals before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.spec import Precision
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
pytest.importorskip("transformers")
pytestmark = pytest.mark.e2e

PAIRS = Path(__file__).resolve().parent.parent / "golden-pairs"
STEPS = ["export", "plans", "onnxruntime", "parity", "run"]


def engine(draft: Path, target: Path, out: Path, *arguments: str) -> Result:
    words = ["engine", str(draft), "--target", str(target), "-o", str(out), *arguments]
    return CliRunner().invoke(group, words)


@pytest.mark.trt
@pytest.mark.slow
def test_a_pair_becomes_a_checked_bundle_with_a_plan_and_a_sample(tmp_path: Path) -> None:
    out = tmp_path / "engine"
    prompt = "Changed in version 3.8:"
    done = engine(PAIRS / "tiny-dspark", PAIRS / "tiny-target", out, "--prompt", prompt)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert len(lines) <= 28
    assert [line.split()[0] for line in lines[1:7]] == [*STEPS, "total"]
    assert "fp16" in lines[1]
    assert "SM 86, 89, 120" in lines[2]
    assert "7 drafts a round" in lines[3]
    assert "same as PyTorch" in lines[4]
    assert "64 tokens, the target's own; acceptance length 1." in lines[5]
    assert any(line.strip().startswith(prompt) for line in lines)
    bundle = Bundle.open(out)
    bundle.verify_hashes()
    plans = bundle.manifest.plans.values()
    assert [plan.graph for plan in plans] == ["draft", "target"]
    for plan in plans:
        assert plan.sms == (86, 89, 120)
        assert str(out / plan.file) in done.stdout
    assert lines[-2:] == [
        "on the device:",
        f"  draftrt run {out} --backend tensorrt-rtx --prompt TEXT",
    ]
    assert bundle.graph().precision is Precision.FP16


@pytest.mark.trt
@pytest.mark.slow
@pytest.mark.extended
def test_a_bf16_bundle_is_checked_through_an_fp32_export_that_is_not_kept(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", ToyTarget(num_layers=2))
    toy = ToyDrafter(
        kind=Kind.ZLAB_DFLASH, num_layers=1, target_layer_ids=(0, 1), num_target_layers=2
    )
    draft = write_drafter(tmp_path / "draft", toy)
    out = tmp_path / "engine"
    arguments = ["--precision", "bf16", "--sm", "89", "--no-run", "--json"]
    done = engine(draft, target, out, *arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [one["step"] for one in found["steps"]] == STEPS[:-1]
    assert found["steps"][3]["result"].endswith("bf16, the target too")
    assert (found["text"], found["acceptance_length"]) == (None, None)
    assert "no bf16 kernels on this CPU" in done.stderr
    assert Bundle.open(out).graph().precision is Precision.BF16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "engine", "target"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sm", "87"], "tensorrt-rtx: got SM87, expected one of 75, 80, 86, 89, 120, 121"),
        (["--sm", "75", "--precision", "bf16"], "a bf16 graph needs bfloat16: got SM75"),
    ],
)
def test_what_cannot_be_built_is_refused_before_any_work(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    out = tmp_path / "engine"
    done = engine(PAIRS / "tiny-dspark", PAIRS / "tiny-target", out, *arguments)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "export ..." not in done.stderr
    assert not out.exists()


@pytest.mark.trt
def test_a_failed_step_ends_the_work_with_its_own_error(tmp_path: Path) -> None:
    out = tmp_path / "engine"
    done = engine(PAIRS / "nothing", PAIRS / "tiny-target", out)
    assert done.exit_code == 1
    assert "export ..." in done.stderr
    assert "no such folder" in done.stderr
    assert done.stdout == ""
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments", [["--sm", "many"], ["--precision", "int3"], ["--backend", "x"]]
)
def test_wrong_usage_is_told_apart(tmp_path: Path, arguments: list[str]) -> None:
    assert engine(tmp_path, tmp_path, tmp_path / "out", *arguments).exit_code == 2
