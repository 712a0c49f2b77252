"""What the sdist and the wheel hold, built from a copy of the tracked files, without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

STAGES = ("engines", "export", "runtime", "validate")

pytestmark = [pytest.mark.packaging, pytest.mark.xdist_group("packaging")]

# Run away from the repository and from site-packages: the unpacked wheel is all there is.
PROBE = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
import draftrt, draftrt.export, draftrt.engines, draftrt.runtime, draftrt.validate
assert draftrt.__file__.startswith(sys.argv[1]), draftrt.__file__
assert draftrt.export.__file__.startswith(sys.argv[1]), draftrt.export.__file__
leaked = [n for n in ("export", "engines", "runtime", "validate") if importlib.util.find_spec(n)]
assert not leaked, leaked
print(draftrt.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; its output is the failure message."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[str]:
    """The tracked files that exist, links to folders included."""
    names = run("git", "ls-files", "-z", cwd=root).split("\0")
    return [name for name in names if name and (root / name).exists()]


@pytest.fixture(scope="module")
def dist(root: Path, tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions, built from the tracked files alone."""
    copy = tmp_path_factory.mktemp("copy")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy / name, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", copy, cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def product(tracked: list[str]) -> set[str]:
    """The paths that the tracked product files have inside the package."""
    inside = {name for name in tracked if name.startswith("draftrt/")}
    inside -= {f"draftrt/{stage}" for stage in STAGES}
    return inside | {f"draftrt/{name}" for name in tracked if is_staged(name)}


def test_the_wheel_holds_every_product_file_and_nothing_else(
    wheel: Path, product: set[str]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == product
    assert "draftrt/py.typed" in names


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path, product: set[str]) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {name.removeprefix("draftrt/") if is_staged(name) else name for name in product}
    assert sources <= names, sources - names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def is_staged(name: str) -> bool:
    """Whether a path of the tree or of the package belongs to one of the four stages."""
    return name.removeprefix("draftrt/").startswith(tuple(f"{stage}/" for stage in STAGES))


def test_the_unpacked_wheel_runs_alone_and_leaks_no_bare_name(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    command = (sys.executable, "-I", "-c", PROBE, str(tmp_path / "site"))
    assert run(*command, cwd=tmp_path).strip() == wheel.name.split("-")[1]


def test_the_metadata_names_the_command_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        folder = info.rpartition("/")[0]
        metadata = archive.read(info).decode()
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert "License-Expression: Apache-2.0" in metadata
    assert "draftrt = draftrt.cli:main" in scripts
