"""`draftrt bench` on a trained pair, and the schedule that runs on what it measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle import Bundle, write_manifest
from draftrt.cli import group
from draftrt.codec import to_json

pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("bench")]

PAIRS = Path(__file__).resolve().parent.parent / "golden-pairs"
PROMPTS = PAIRS.parent / "assets" / "prompts.txt"
PROMPT = 'The "for" statement is used to iterate over'
FEW = ("--num-prompts", 2, "--max-tokens", 12, "--repeats", 1)


def run_cli(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "bundle"
    words = ("--target", PAIRS / "tiny-target", "-o", out, "--max-context", 4200)
    done = run_cli("export", PAIRS / "tiny-dspark", *words)
    assert done.exit_code == 0, done.output
    return out


def run_json(bundle: Path, *arguments: object) -> dict[str, Any]:
    words = ("--prompt", PROMPT, "--max-tokens", 40, "--ignore-eos", "--json")
    done = run_cli("run", bundle, *words, *arguments)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_bench_measures_and_its_costs_drive_the_schedule(bundle: Path, tmp_path: Path) -> None:
    refused = run_cli("run", bundle, "--prompt", PROMPT, "--schedule", "survival")
    assert refused.exit_code == 1
    assert "draftrt bench BUNDLE --calibrate" in refused.stderr

    figures, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    files = ("--json", figures, "--svg", picture, "--calibrate", "--rivals")
    done = run_cli("bench", bundle, *FEW, *files)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) <= 25
    assert picture.read_text().startswith("<svg")
    found = json.loads(figures.read_text())
    names = [one["name"] for one in found["systems"]]
    assert names[:2] == ["plain", "speculative"]
    assert names[2].startswith("transformers ")
    assert [one["num_same"] for one in found["systems"]] == [2] * len(names)
    assert [one["context"] for one in found["costs"]] == [256, 4096]
    assert list(found["costs"][0]["verify_ms"]) == ["1", "2", "4", "8", "16"]
    assert found["systems"][0]["stats"]["num_rounds"] == 0
    assert found["systems"][1]["stats"]["num_rounds"] > 0

    kept = to_json(Bundle.open(bundle).manifest.costs)
    assert kept == {"target graph, onnxruntime, cpu, 1 thread": found["costs"][0]}
    drafted, scheduled = run_json(bundle), run_json(bundle, "--schedule", "survival")
    assert scheduled["token_ids"] == drafted["token_ids"]
    assert run_cli(
        "run", bundle, "--prompt", "a", "--schedule", "survival", "--threads", 2
    ).exit_code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-tokens", 5000), "8 of 8 prompts do not fit, expected larger caches: 5000 are"),
        (("--prompts", "no/such/file"), "no/such/file: no such file"),
        (("--schedule", "survival", "--threads", 3), "no costs were measured"),
    ],
    ids=["too long", "no prompts", "not calibrated"],
)
def test_what_cannot_be_measured_says_why(
    bundle: Path, arguments: Sequence[object], said: str
) -> None:
    done = run_cli("bench", bundle, *arguments)
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_a_bundle_without_a_drafter_is_refused(bundle: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    manifest = Bundle.open(bundle).manifest
    write_manifest(alone, replace(manifest, drafter=None, graphs={}, files={}))
    done = run_cli("bench", alone)
    assert done.exit_code == 1
    assert "holds a target and no drafter" in done.stderr


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_timed(
    bundle: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{PROMPT}\n{'a b ' * 3000}\n", encoding="utf-8")
    done = run_cli("bench", bundle, "--prompts", prompts, *FEW)
    assert done.exit_code == 1
    assert "costs behind" not in done.stderr
    assert "Error: 1 of 2 prompts do not fit, expected 1 to" in done.stderr
    assert "\n  prompt 2, 'a b a b " in done.stderr
    assert "export with a larger --max-context" in done.stderr


def test_a_rivals_checkpoint_that_is_none_is_refused_before_anything_is_timed(
    bundle: Path, tmp_path: Path
) -> None:
    done = run_cli("bench", bundle, *FEW, "--rivals", "--draft", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {tmp_path}: no config.json there, expected the drafter")


def test_a_report_measures_what_it_is_not_given(bundle: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "report.html", tmp_path / "report.json"
    done = run_cli("report", bundle, "-o", out, "--json", data, "--no-parity", "--measure")
    assert done.exit_code == 0, done.output
    assert "bench ..." in done.stderr
    bench = json.loads(data.read_text())["bench"]
    (own,) = [one for one in bench["systems"] if one["name"] == "speculative"]
    assert (bench["num_prompts"], bench["max_tokens"], own["num_same"]) == (4, 64, 4)
    page = out.read_text()
    for share in own["stats"]["acceptance_by_position"]:
        assert f'<td class="short">{share:.3f}</td>' in page
    assert "Source: made for this report." in page
    wrong = run_cli("report", bundle, "-o", out, "--bench", data, "--measure")
    assert wrong.exit_code == 2
    assert "exclude each other" in wrong.stderr


@pytest.mark.extended
def test_a_report_holds_what_the_doctor_really_prints(bundle: Path, tmp_path: Path) -> None:
    words = ("--prompts", PROMPTS, "--num-prompts", 3, "--max-tokens", 32, "--no-forms", "--json")
    done = run_cli("doctor", "acceptance", bundle, *words)
    assert done.exit_code in (0, 3), done.output
    found, out = tmp_path / "doctor.json", tmp_path / "report.html"
    found.write_text(done.stdout)
    done = run_cli("report", bundle, "-o", out, "--no-parity", "--doctor", found)
    assert done.exit_code == 0, done.output
    page = out.read_text()
    assert all(escape(verdict) in page for verdict in json.loads(found.read_text())["verdicts"])
