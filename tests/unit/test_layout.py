"""Who may import whom, how long a file may be, and that importing the package stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SIBLINGS = ("export", "engines", "runtime")
STAGES = (*SIBLINGS, "validate")
MAX_LINES = 500

# Third-party packages that a folder may import when it is imported. All others wait for a call.
AT_IMPORT = {
    "draftrt": {"numpy"},
    "export": {"numpy", "torch", "transformers", "onnx", "safetensors"} | {"jinja2", "tokenizers"},
    "engines": {"numpy"},
    "runtime": {"numpy", "tokenizers"},
    "validate": {"numpy"},
}
# The same for files whose name ends so: the command line.
AT_IMPORT_BY_NAME = {"cli": {"click"}, "command": {"click"}}
# Inside functions too, PyTorch reaches the runtime through the Hugging Face adapter alone, and
# through what it is measured against.
TORCH_IN_RUNTIME = {"hf_target.py", "bench_rivals.py"}
# The spine's files that reach into a stage, inside functions: the command line and `draftrt.load`.
STAGES_IN_CALLS = {"cli.py", "__init__.py"}
HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "polygraphy", "tensorrt", "tensorrt_rtx")


@dataclass(frozen=True)
class Import:
    """One imported module, where, and whether it is imported together with the file."""

    module: str
    line: int
    at_import: bool


def imports_of(text: str) -> Iterator[Import]:
    """Every import of a source text: statements, and import_module calls on a literal name."""
    yield from visit(ast.parse(text), at_import=True)


def visit(node: ast.AST, *, at_import: bool) -> Iterator[Import]:
    """Walk below a node; functions and `if TYPE_CHECKING` bodies do not run at import time."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            origin = child.module or "."
            yield from (
                Import(f"{origin}.{alias.name}", child.lineno, at_import) for alias in child.names
            )
        elif isinstance(child, ast.Call) and "import_module" in ast.unparse(child.func):
            yield from (
                Import(str(argument.value), child.lineno, at_import)
                for argument in child.args
                if isinstance(argument, ast.Constant)
            )
        deferred = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield from visit(child, at_import=at_import and not deferred)


def is_allowed(folder: str, name: str, found: Import) -> bool:
    """Whether a file of a folder may have this import."""
    package, _, rest = found.module.partition(".")
    if package == "tests":
        return False
    if package == "draftrt":
        stage = rest.partition(".")[0]
        if stage not in STAGES or stage == folder or folder == "validate":
            return True
        return folder == "draftrt" and name in STAGES_IN_CALLS and not found.at_import
    if package in sys.stdlib_module_names:
        return True
    if folder == "runtime" and package in ("torch", "transformers"):
        return name in TORCH_IN_RUNTIME and not found.at_import
    allowed = AT_IMPORT[folder] | AT_IMPORT_BY_NAME.get(name.split("_")[-1][: -len(".py")], set())
    return not found.at_import or package in allowed


def violations(folder: str, name: str, text: str) -> list[str]:
    """The imports that a file may not have, one line each."""
    return [
        f"{folder}/{name}:{found.line} imports {found.module}"
        + (" when it is imported" if found.at_import else " in a function")
        for found in imports_of(text)
        if not is_allowed(folder, name, found)
    ]


def product_files(root: Path) -> list[Path]:
    return sorted(path for folder in AT_IMPORT for path in (root / folder).glob("*.py"))


def test_every_file_imports_only_what_its_folder_may(root: Path) -> None:
    found = [
        line
        for path in product_files(root)
        for line in violations(path.parent.name, path.name, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("folder", "name", "text", "ok"),
    [
        ("engines", "build.py", "from draftrt.export import onnx", False),
        ("engines", "build.py", "def f():\n import draftrt.export.onnx", False),
        ("engines", "build.py", "import_module('draftrt.runtime')", False),
        ("engines", "build.py", "import polygraphy", False),
        ("engines", "build.py", "def f():\n import polygraphy", True),
        ("runtime", "decode.py", "from draftrt import export", False),
        ("runtime", "decode.py", "def f():\n import torch", False),
        ("runtime", "hf_target.py", "def f():\n import torch", True),
        ("runtime", "hf_target.py", "import torch", False),
        ("runtime", "ort.py", "import onnxruntime", False),
        ("runtime", "ort.py", "def f():\n import onnxruntime", True),
        ("validate", "parity.py", "from draftrt.export import onnx", True),
        ("validate", "parity.py", "try:\n import torch\nexcept ImportError: pass", False),
        ("validate", "parity.py", "if TYPE_CHECKING:\n import torch", True),
        ("export", "onnx.py", "from draftrt.validate import parity", False),
        ("export", "onnx.py", "import torch.nn", True),
        ("draftrt", "spec.py", "def f():\n import draftrt.export", False),
        ("draftrt", "spec.py", "import click", False),
        ("draftrt", "cli.py", "import click", True),
        ("draftrt", "cli.py", "import draftrt.export", False),
        ("draftrt", "cli.py", "def f():\n import draftrt.export", True),
        ("draftrt", "__init__.py", "import draftrt.runtime", False),
        ("draftrt", "__init__.py", "def f():\n import draftrt.runtime", True),
        ("export", "inspect_command.py", "import click", True),
        ("export", "onnx.py", "import tests.conftest", False),
    ],
)
def test_the_import_rule_tells_right_from_wrong(
    folder: str, name: str, text: str, ok: bool
) -> None:
    assert (violations(folder, name, text) == []) is ok


def test_the_stages_are_flat_and_linked_into_the_package(root: Path) -> None:
    nested = [path for folder in AT_IMPORT for path in (root / folder).glob("*/*.py")]
    own = [path for path in nested if not path.parent.is_symlink()]
    assert not own, "the wheel lists five packages; these files would be missing from it"
    links = {stage: str((root / "draftrt" / stage).readlink()) for stage in STAGES}
    assert links == {stage: f"../{stage}" for stage in STAGES}
    missing = [folder for folder in AT_IMPORT if not (root / folder / "__init__.py").is_file()]
    assert not missing, "without __init__.py a folder is not a package"


def test_no_product_file_is_longer_than_a_reader_keeps_in_mind(root: Path) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in product_files(root)}
    long = [f"{path.relative_to(root)}: {n}" for path, n in lengths.items() if n > MAX_LINES]
    assert not long, f"more than {MAX_LINES} lines, split by subject: {long}"


@pytest.mark.parametrize(
    "statement",
    [
        "import draftrt, draftrt.runtime",
        "import draftrt, draftrt.engines, draftrt.validate",
        "from draftrt.cli import group; group(['--help'], standalone_mode=False)",
    ],
    ids=["runtime", "engines and validate", "--help"],
)
def test_heavy_packages_wait_until_they_are_needed(root: Path, statement: str) -> None:
    probe = f"{statement}\nimport json, sys\nprint(); print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(output_of(probe, root).splitlines()[-1]))
    assert "draftrt" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))


def test_importing_the_package_is_quick_and_loads_no_third_party_package(root: Path) -> None:
    probe = """
import sys, time
before, started = set(sys.modules), time.process_time()
import draftrt
draftrt.load
taken = time.process_time() - started
import json
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([taken, sorted(names - set(sys.stdlib_module_names) - {"draftrt"})]))
draftrt.DecodeOptions(max_tokens=1)
try:
    draftrt.nothing
except AttributeError as error:
    print(error)
"""
    first, second = output_of(probe, root).splitlines()
    taken, packages = json.loads(first)
    assert taken < 0.5
    assert packages == []
    assert second == "module 'draftrt' has no attribute 'nothing'"


def output_of(program: str, root: Path) -> str:
    """What a program prints in an interpreter of its own."""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
