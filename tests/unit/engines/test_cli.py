"""`draftrt build` as a user meets it: output, messages and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from draftrt.spec import Precision

MakeBundle = Callable[..., Path]


def draftrt(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


@pytest.mark.trt
def test_a_build_reports_the_plan_and_says_when_it_was_there(make_bundle: MakeBundle) -> None:
    folder = make_bundle(Precision.FP32)
    plan = folder / "plans/draft.tensorrt-rtx.sm86-89-120.plan"
    first = draftrt("build", folder, "--sm", "86,89,120", "--workspace", 256, "--dim", "T=1:4:32")
    assert first.exit_code == 0, first.output
    assert first.stderr == ""
    assert first.stdout.startswith(f"built {plan}\n")
    assert "SM 86, 89, 120" in first.stdout
    assert f"{plan.stat().st_size / 1e6:.1f} MB" in first.stdout
    assert "1 of 1 layers have no fused kernel" in first.stdout
    assert "not run" in first.stdout
    assert first.stdout.splitlines()[-2:] == [
        "no target graph: the target runs through the Hugging Face port, in PyTorch:",
        f"  draftrt run {folder} --backend tensorrt-rtx --device cuda --target FOLDER "
        "--prompt TEXT",
    ]

    options = ("--sm", "120, 89,86", "--workspace", 256, "--dim", "T=1:4:32", "--json")
    again = draftrt("build", folder, *options)
    assert again.exit_code == 0
    (record,) = json.loads(again.stdout)
    assert record["is_cached"] is True
    assert record["num_decomposed"] is None
    assert record["sms"] == [86, 89, 120]
    assert record["options"]["workspace_bytes"] == str(256 * 2**20)
    assert folder / record["file"] == plan
    shown = draftrt("build", folder, *options[:-1]).stdout
    assert shown.startswith(f"already built, same graph, options and version: {plan}")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (["--sm", "90"], 1, "got SM90, expected one of 75, 80, 86, 89, 120, 121"),
        (["--sm", "75,86"], 1, "a bf16 graph needs bfloat16: got SM75"),
        (["--sm", "86", "--graph", "target"], 1, "no graph 'target'"),
        (["--sm", "42,86,7"], 2, "got SM42, SM7, expected of tensorrt-rtx: 75, 80, 86, 89, 120"),
        (["--device", "t4"], 1, "a bf16 graph needs bfloat16: got SM75"),
        (["--device", "t4"], 1, "Hint: choose another --device than t4, or export the graph with"),
        (["--device", "thor"], 1, "tensorrt-rtx: got SM110 of thor, expected one of 75, 80"),
        (["--device", "thor"], 1, "choose another --device than thor; thor needs --backend tenso"),
        (["--device", "T5"], 2, "--device 'T5' is not known, expected one of orin-nano-8gb, "),
        ([], 2, "--sm is missing"),
        (["--sm", "8.9"], 2, "expected numbers such as 86,89,120"),
        (["--sm", ""], 2, "expected numbers such as 86,89,120"),
        (["--sm", "86", "--dim", "T=1:2"], 2, "expected NAME=MIN:OPT:MAX"),
        (["--sm", "86", "--dim", "T=4:2:8"], 2, "1 <= min <= opt <= max"),
        (["--sm", "86", "--dim", "T=0:2:8"], 2, "1 <= min <= opt <= max"),
        (["--sm", "86", "--dim", "T=1:2:8", "--dim", "T=1:2:4"], 2, "got T twice"),
        (["--sm", "86", "--graph", "drafter"], 2, "is not one of 'draft', 'target', 'all'"),
        (["--sm", "86", "--timeout", "0"], 2, "--timeout"),
        (["--sm", "86", "--workspace", "0"], 2, "--workspace"),
        (["--sm", "86", "--backend", "cuda"], 2, "tensorrt-rtx"),
    ],
)
def test_what_is_wrong_is_said_with_its_exit_code(
    make_bundle: MakeBundle, arguments: list[str], exit_code: int, text: str
) -> None:
    folder = make_bundle(Precision.BF16)
    result = draftrt("build", folder, *arguments)
    assert result.exit_code == exit_code, result.output
    assert text in result.stderr
    assert result.stdout == ""
    assert not (folder / "plans").exists()


@pytest.mark.trt
def test_an_unknown_dimension_is_refused_with_the_valid_ones(make_bundle: MakeBundle) -> None:
    result = draftrt("build", make_bundle(), "--sm", "86", "--dim", "S=1:1:1")
    assert result.exit_code == 2
    assert "no dimension 'S' in the graphs' signatures, there are draft: ['T']" in result.stderr


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    result = draftrt("build", tmp_path, "--sm", "86")
    assert result.exit_code == 1
    assert "no manifest.json there" in result.stderr


@pytest.mark.needs("no classic TensorRT")
def test_classic_tensorrt_that_is_not_installed_names_its_extra(make_bundle: MakeBundle) -> None:
    result = draftrt("build", make_bundle(), "--backend", "tensorrt", "--sm", "87")
    assert result.exit_code == 1
    assert "Hint: pip install 'draftrt[trt]'" in result.stderr


def test_help_lists_the_sms_of_each_backend() -> None:
    result = draftrt("build", "--help")
    assert result.exit_code == 0
    assert "tensorrt-rtx: 75, 80, 86, 89, 120, 121;" in " ".join(result.stdout.split())
