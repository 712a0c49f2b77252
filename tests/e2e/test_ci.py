"""The workflow that users copy: it parses, its commands exist, and run one after the other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from draftrt.cli import group

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.e2e
COMMAND = re.compile(r"^ *(draftrt [^|>\n]*)", re.MULTILINE)


@pytest.fixture(scope="module")
def workflow(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((root / "docs" / "ci" / "parity.yml").read_text())
    return found


def steps(workflow: dict[str, Any]) -> list[str]:
    """What the job runs, without what installs draftrt."""
    runs = [step["run"] for step in workflow["jobs"]["parity"]["steps"] if "run" in step]
    return [run for run in runs if not run.startswith("pip ")]


def check_parses(line: str) -> None:
    """Resolve the command and parse its words; nothing is run."""
    words = shlex.split(line.replace('"${bench[@]}"', "--bench bench.json"))[1:]
    command: click.Command = group
    context = click.Context(command, info_name="draftrt")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"{line}: no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    command.parse_args(context, words)


def test_every_command_of_the_workflow_and_of_its_page_is_there(
    workflow: dict[str, Any], root: Path
) -> None:
    page = (root / "docs" / "ci.md").read_text()
    fenced = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    lines = COMMAND.findall("\n".join(steps(workflow))) + COMMAND.findall(fenced)
    assert len(lines) >= 13
    for line in lines:
        check_parses(line)


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(AssertionError, match="no command 'parties'"):
        check_parses("draftrt validate parties bundle")
    with pytest.raises(click.NoSuchOption):
        check_parses("draftrt validate parity bundle --jason")


def test_the_extras_that_the_workflow_installs_are_those_of_the_package(
    workflow: dict[str, Any], root: Path
) -> None:
    listed = re.search(r"draftrt\[([\w,]+)\] @ git\+https://", workflow["env"]["DRAFTRT"])
    assert listed is not None
    section = (root / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    known = set(re.findall(r"^([\w-]+) = \[", section.partition("\n[")[0], re.MULTILINE))
    assert set(listed[1].split(",")) <= known
    # YAML reads the key `on` as a truth value
    assert set(workflow) == {"name", True, "env", "defaults", "jobs"}


@pytest.mark.slow
@pytest.mark.extended
def test_the_steps_run_on_the_shipped_pair(
    workflow: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("transformers")
    assets = root / "tests" / "assets"
    shims = tmp_path / "bin"
    shims.mkdir()
    shim = shims / "draftrt"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m draftrt "$@"\n')
    shim.chmod(0o755)
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        **{name: str(value) for name, value in workflow["env"].items()},
        "DRAFT": str(assets / "tiny-dspark"),
        "TARGET": str(assets / "tiny-target"),
        "CASES": str(tmp_path / "cases"),
        "GITHUB_STEP_SUMMARY": str(summary),
        "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    recorded = run('draftrt validate record "$DRAFT" --target "$TARGET" -o "$CASES/drawn"')
    assert recorded.returncode == 0, recorded.stderr
    for script in steps(workflow):
        done = run(script)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    assert "drawn" in (tmp_path / "matrix.txt").read_text()
    assert "## Acceptance and times" in summary.read_text()
    for name in ("parity.json", "bench.json", "report.html"):
        assert (tmp_path / name).stat().st_size > 1000
