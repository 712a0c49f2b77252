"""Where code lies, who may import whom, and that importing the package stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SIBLINGS = ("export", "engines", "runtime")
STAGES = (*SIBLINGS, "validate")
MAX_LINES = 500
MOST_LINES_OF_A_FUNCTION = 50
# A subject takes more lines than this; what is shorter stands alone for PyTorch's sake, seldom.
FEW_LINES, MOST_SHORT_FILES = 60, 10
MOST_ENTRIES = 12
MOST_ENTRIES_OF_THE_SPINE = 21
# One file an architecture: as many as there are.
ANY_NUMBER = {"export/models/architectures"}

# Rooms of a stage, the highest first. Each imports what stands below it; rooms of one line do not
# know each other. A room is a folder or, at the top of a stage, a file.
LADDERS = {
    "export": (
        "cli",
        "pipeline",
        "manifest_graphs",
        "write_graphs",
        "check",
        "graph",
        "weights",
        "checkpoint",
        "models",
        "tracing config",
        "options",
    ),
    "engines": (
        "cli",
        "build",
        "worker",
        "process",
        "preflight memory options pair",
        "devices environment",
        "capabilities",
    ),
    "runtime": (
        "chat server",
        "cli",
        "prompt_options",
        "load",
        "pair",
        "prefix",
        "prompts",
        "text",
        "decoding",
        "targets",
        "backends",
    ),
    "validate": (
        "cli",
        "report",
        "records engine",
        "parity bisect doctor bench capacity reuse",
        "compare rounds",
    ),
}

# Third-party packages that a folder may import when it is imported. All others wait for a call.
AT_IMPORT = {
    "draftrt": {"numpy"},
    "export": {"numpy", "torch", "transformers", "onnx", "safetensors"} | {"jinja2", "tokenizers"},
    "engines": {"numpy"},
    "runtime": {"numpy", "tokenizers"},
    "runtime/server": {"prometheus_client", "pydantic", "starlette"},
    "validate": {"numpy"},
}
# The same for the files of the command line.
AT_IMPORT_OF_COMMANDS = {"click"}
COMMANDS = {"cli.py", "cli_options.py", "failure_cli.py", "prompt_options.py"}
# What loads PyTorch when it is imported: these, and nothing else of the package.
LOADS_TORCH = {
    "export/check": {
        "compare",
        "drafter",
        "feeds",
        "layer_samples",
        "lazy_weights",
        "one_layer",
        "onnx_file",
        "reference",
        "target",
    },
    "export/graph": {"files", "float32"},
    "export/models/architectures": {
        "carried",
        "gated_delta",
        "muse_glimmer",
        "short_conv",
        "qwen3_5",
    },
    "export/models": {
        "attention",
        "decoder",
        "drafter",
        "gemma4",
        "heads",
        "ops",
        "qwen3",
        "rope",
        "weights",
    },
    "export/tracing": {"fp16_peaks", "operators", "recorder", "trace"},
    "export/weights": {"overflow", "quantize", "quantized"},
    "export": {"manifest_graphs", "write_graphs"},
}
# Inside functions too, PyTorch reaches the runtime through the Hugging Face adapter alone.
TORCH_IN_RUNTIME = {"targets/huggingface.py"}
# The spine's files that reach into a stage, inside functions: the command line and `draftrt.load`.
STAGES_IN_CALLS = {"cli.py", "__init__.py"}
IMPORTERS = ("import_module", "import_package")
HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "polygraphy", "tensorrt", "tensorrt_rtx")


@dataclass(frozen=True)
class Import:
    """One imported module, where, and whether it is imported together with the file."""

    module: str
    line: int
    at_import: bool


@cache
def imports_of(text: str) -> tuple[Import, ...]:
    """Every import of a source text: statements, and calls of `IMPORTERS` on a literal name."""
    return tuple(visit(parsed(text), at_import=True))


@cache
def parsed(text: str) -> ast.Module:
    """A source text's tree."""
    return ast.parse(text)


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
        elif isinstance(child, ast.Call) and name_of(child.func).endswith(IMPORTERS):
            yield from (
                Import(str(argument.value), child.lineno, at_import)
                for argument in child.args
                if isinstance(argument, ast.Constant)
            )
        deferred = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in name_of(child.test)
        )
        yield from visit(child, at_import=at_import and not deferred)


def name_of(node: ast.expr) -> str:
    """The last name of an expression like `a.b`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_allowed(folder: str, name: str, found: Import) -> bool:
    """Whether a file of a stage may have this import; `name` is its path inside the stage."""
    package, _, rest = found.module.partition(".")
    if package == "tests":
        return False
    if package == "draftrt":
        stage, _, inner = rest.partition(".")
        if stage not in STAGES:
            return True
        if stage == folder:
            return is_downwards(folder, room_of(name), inner.partition(".")[0])
        if folder == "validate":
            return True
        return folder == "draftrt" and name in STAGES_IN_CALLS and not found.at_import
    if package in sys.stdlib_module_names:
        return True
    if folder == "runtime" and package in ("torch", "transformers"):
        return name in TORCH_IN_RUNTIME and not found.at_import
    is_command = name.rpartition("/")[2] in COMMANDS
    room = f"{folder}/{room_of(name)}"
    allowed = AT_IMPORT[folder] | (
        AT_IMPORT_OF_COMMANDS if is_command else AT_IMPORT.get(room, set())
    )
    return not found.at_import or package in allowed


def room_of(name: str) -> str:
    """The folder of a file inside its stage, or the file itself at the top of it."""
    return name.partition("/")[0].removesuffix(".py")


def is_downwards(stage: str, room: str, other: str) -> bool:
    """Whether a room of a stage stands above another one, or is the same."""
    heights = {name: at for at, names in enumerate(LADDERS[stage]) for name in names.split()}
    if not other or room == other:
        return True
    return room in heights and other in heights and heights[room] < heights[other]


def violations(folder: str, name: str, text: str) -> list[str]:
    """The imports that a file may not have, one line each."""
    return [
        f"{folder}/{name}:{found.line} imports {found.module}"
        + (" when it is imported" if found.at_import else " in a function")
        for found in imports_of(text)
        if not is_allowed(folder, name, found)
    ]


def product_files(root: Path) -> list[Path]:
    """Every Python file of the product, none of them through the links in `draftrt/`."""
    staged = [path for stage in STAGES for path in (root / stage).rglob("*.py")]
    folders = (root / "draftrt", root / "draftrt" / "compare", root / "draftrt" / "hub")
    spine = [path for folder in folders for path in folder.glob("*.py")]
    return sorted([*spine, *staged])


def place_of(path: Path, root: Path) -> tuple[str, str]:
    """The stage of a product file, and its path inside the stage."""
    stage, _, name = path.relative_to(root).as_posix().partition("/")
    return stage, name


def test_every_file_imports_only_what_its_folder_may(root: Path) -> None:
    found = [
        line
        for path in product_files(root)
        for line in violations(*place_of(path, root), path.read_text(encoding="utf-8"))
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
        ("engines", "capabilities.py", "from draftrt.engines.build import build_plan", False),
        ("runtime", "decoding/loop.py", "from draftrt import export", False),
        ("runtime", "decoding/loop.py", "def f():\n import torch", False),
        ("runtime", "decoding/loop.py", "from draftrt.runtime.targets import base", True),
        ("runtime", "targets/base.py", "from draftrt.runtime.decoding import loop", False),
        ("runtime", "targets/base.py", "def f():\n from draftrt.runtime import pair", False),
        ("runtime", "targets/huggingface.py", "def f():\n import torch", True),
        ("runtime", "targets/huggingface.py", "import torch", False),
        ("runtime", "pair.py", "def f():\n import_package('torch', what='it')", False),
        ("runtime", "backends/ort.py", "import onnxruntime", False),
        ("runtime", "backends/ort.py", "import pydantic", False),
        ("runtime", "server/schema.py", "import pydantic", True),
        ("runtime", "server/cli.py", "import pydantic", False),
        ("runtime", "backends/ort.py", "def f():\n import onnxruntime", True),
        ("validate", "parity/parity.py", "from draftrt.export import onnx", True),
        ("validate", "parity/parity.py", "try:\n import torch\nexcept ImportError: pass", False),
        ("validate", "parity/parity.py", "if TYPE_CHECKING:\n import torch", True),
        ("validate", "parity/parity.py", "from draftrt.validate.bisect import graph", False),
        ("validate", "parity/parity.py", "from draftrt.validate.parity import ranges", True),
        ("validate", "compare/arrays.py", "from draftrt.validate.attic import old", False),
        ("export", "models/ops.py", "from draftrt.validate import parity", False),
        ("export", "models/ops.py", "import torch.nn", True),
        ("export", "models/ops.py", "from draftrt.export.config import rope", True),
        ("export", "config/rope.py", "from draftrt.export.models import rope", False),
        ("export", "config/rope.py", "from draftrt.export.tracing import trace", False),
        ("draftrt", "spec.py", "def f():\n import draftrt.export", False),
        ("draftrt", "spec.py", "import click", False),
        ("draftrt", "cli.py", "import click", True),
        ("draftrt", "cli.py", "import draftrt.export", False),
        ("draftrt", "cli.py", "def f():\n import draftrt.export", True),
        ("draftrt", "__init__.py", "import draftrt.runtime", False),
        ("draftrt", "__init__.py", "def f():\n import draftrt.runtime", True),
        ("validate", "doctor/cli.py", "import click", True),
        ("validate", "doctor/examine.py", "import click", False),
        ("export", "models/ops.py", "import tests.conftest", False),
    ],
)
def test_the_import_rule_tells_right_from_wrong(
    folder: str, name: str, text: str, ok: bool
) -> None:
    assert (violations(folder, name, text) == []) is ok


def test_every_folder_is_a_package_and_every_stage_is_linked_into_the_package(root: Path) -> None:
    links = {stage: str((root / "draftrt" / stage).readlink()) for stage in STAGES}
    assert links == {stage: f"../{stage}" for stage in STAGES}
    folders = {path.parent for path in product_files(root)}
    missing = [
        str(path.relative_to(root)) for path in folders if not (path / "__init__.py").is_file()
    ]
    assert not missing, f"without __init__.py a folder is not a package: {missing}"


def test_no_folder_holds_more_than_a_reader_surveys(root: Path) -> None:
    entries = defaultdict(set)
    for path in product_files(root):
        if path.name != "__init__.py":
            entries[path.parent].add(path.name)
        if path.parent.parent != root:
            entries[path.parent.parent].add(path.parent.name)
    crowded = {
        name: len(found)
        for folder, found in entries.items()
        if (name := folder.relative_to(root).as_posix()) not in ANY_NUMBER
        and len(found) > (MOST_ENTRIES_OF_THE_SPINE if name == "draftrt" else MOST_ENTRIES)
    }
    assert not crowded, f"entries beside __init__.py; group them by subject: {crowded}"


def test_a_file_is_one_subject_neither_too_long_nor_a_scrap(root: Path) -> None:
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in product_files(root)
    }
    long = {name: n for name, n in lengths.items() if n > MAX_LINES}
    assert not long, f"more than {MAX_LINES} lines, split by subject: {long}"
    short = {
        name: n
        for name, n in lengths.items()
        if n < FEW_LINES and not name.endswith(("__init__.py", "__main__.py"))
    }
    assert len(short) <= MOST_SHORT_FILES, f"put each with its subject: {short}"


def test_a_function_fits_on_a_screen(root: Path) -> None:
    """Signatures do not count, which are a command's options, and docstrings do not either."""
    long = {}
    for path in product_files(root):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                first = body[0].lineno if body else node.lineno
                if (count := (node.end_lineno or first) - first + 1) > MOST_LINES_OF_A_FUNCTION:
                    long[f"{path.relative_to(root)}: {node.name}"] = count
    assert not long, f"more than {MOST_LINES_OF_A_FUNCTION} lines: {long}"


def test_no_class_name_stands_for_two_things(root: Path) -> None:
    places = defaultdict(list)
    for path in product_files(root):
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(root).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"one name a thing: {twice}"


def modules_of(root: Path) -> dict[str, Path]:
    """The dotted names of all product files."""
    modules = {}
    for path in product_files(root):
        parts = path.relative_to(root).with_suffix("").parts
        inside = parts if parts[0] == "draftrt" else ("draftrt", *parts)
        modules[".".join(inside).removesuffix(".__init__")] = path
    return modules


def importing_torch(modules: dict[str, Path]) -> set[str]:
    """The modules that import PyTorch when they are imported, themselves or through others."""
    direct: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = [one for one in imports_of(path.read_text(encoding="utf-8")) if one.at_import]
        direct[name] = {
            one.module if one.module in modules else one.module.rpartition(".")[0] or one.module
            for one in found
        }
    reaching = {n for n, found in direct.items() if any(m.split(".")[0] == "torch" for m in found)}
    while more := {n for n, found in direct.items() if found & reaching} - reaching:
        reaching |= more
    return reaching


def test_pytorch_is_loaded_by_the_listed_modules_and_no_other(root: Path) -> None:
    modules = modules_of(root)
    listed = {
        f"draftrt.{folder.replace('/', '.')}.{name}"
        for folder, names in LOADS_TORCH.items()
        for name in names
    }
    assert listed <= modules.keys()
    assert importing_torch(modules) == listed
    others = sorted(modules.keys() - listed - {"draftrt.__main__"})
    outside = [name for name in others if not name.startswith("draftrt.export")]
    probe = f"""
import importlib, sys
light = ("torch", "transformers")
for names, heavy in (({outside!r}, {HEAVY!r}), ({others!r}, light)):
    for name in names:
        importlib.import_module(name)
        loaded = [package for package in heavy if package in sys.modules]
        if loaded:
            sys.exit(f"{{name}} or what it imports loads {{loaded}} when it is imported")
"""
    output_of(probe, root)


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
taken = time.process_time() - started
import json
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([taken, sorted(names - set(sys.stdlib_module_names) - {"draftrt"})]))
draftrt.DecodeOptions(max_tokens=1)
assert all(hasattr(draftrt, name) for name in draftrt.__all__)
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
