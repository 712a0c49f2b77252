"""The project's own files agree with each other: Makefile, pyproject.toml, pins, CI script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import draftrt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Extras that are never installed together with the ones that the pins are for.
OTHER_MACHINES = ("ort-gpu", "trt")

needs_make = pytest.mark.needs("make")


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = tomllib.loads(text)
    return loaded


def make(root: Path, *arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    outer = (
        "MAKEFLAGS",
        "MFLAGS",
        "MAKEOVERRIDES",
        "PYTEST_ARGS",
    )  # of the make that runs the tests
    env = {name: value for name, value in os.environ.items() if name not in outer}
    run = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
    return run.stdout


def test_every_direct_dependency_has_one_pin_inside_its_range(
    root: Path, project: dict[str, Any]
) -> None:
    lines = (root / "constraints" / "dev.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(pinned) == len(pins), "a package is pinned twice"
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *(line for name in extras if name not in OTHER_MACHINES for line in extras[name]),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != "draftrt":
            pin = pinned.get(canonicalize_name(requirement.name))
            assert pin is not None, f"{requirement} has no pin"
            assert pin in requirement.specifier, f"{requirement} excludes its pin {pin}"


def test_the_version_is_said_once_more_and_the_same(project: dict[str, Any]) -> None:
    assert draftrt.__version__ == project["project"]["version"]


@needs_make
def test_make_lists_every_target(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE))
    listed = set(re.findall(r"^  make (\S+)  +\S", make(root), re.MULTILINE))
    assert listed == targets


@needs_make
def test_make_engine_passes_paths_with_spaces_and_quotes_whole(root: Path) -> None:
    said = make(root, "-n", "engine", "DRAFT=/my models/it's one/", "TARGET=a b", "SM=86,89")
    assert r"engine '/my models/it'\''s one/' --target 'a b'" in said
    assert r"'build/engine/it'\''s one'" in said
    assert "--sm '86,89'" in said
    assert "--precision" not in said
    assert "--family" not in said
    assert "--family 'dspark'" in make(root, "-n", "engine", "FAMILY=dspark")


@needs_make
def test_make_test_gpu_needs_no_environment_when_pytest_is_named(root: Path) -> None:
    said = make(root, "-n", "test-gpu", "PYTEST=python3 -m pytest")
    assert said.strip() == "python3 -m pytest -m 'gpu or trt'"


def test_ci_runs_the_command_of_the_readme_and_nothing_else(root: Path) -> None:
    script = root / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "not executable"
    lines = [line for line in script.read_text().splitlines() if line and line[0] != "#"]
    commands = [line for line in lines if not line.startswith(("set ", "cd ", "export "))]
    assert commands == ["make test"]
