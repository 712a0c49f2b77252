"""How far a reader walks: the files that three journeys enter, read along the calls.

A static walk: from an entry, every call in the order of the text, each function once. A call is
followed through imports, `self`, a class's constructor, and a method name that one class alone has.
The spine `draftrt/` is left out: a reader knows it. A return is a step into a file already left.

    python -m tests.journeys
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

STAGES = ("export", "engines", "runtime", "validate")
JOURNEYS = {
    "draftrt export": ("export/cli.py", "export"),
    "one round": ("runtime/decoding/loop.py", "DecodeLoop._round"),
    "validate parity": ("validate/parity/cli.py", "parity"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """What a file defines and what it imports from the stages, functions' imports included."""

    path: str
    functions: dict[str, Function] = field(default_factory=dict)  # by name, or Class.name
    classes: set[str] = field(default_factory=set)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # module, name or ""


@lru_cache(maxsize=2)
def read(root: Path) -> dict[str, Module]:
    """Every file of the stages by its dotted name."""
    paths = {
        "draftrt." + ".".join(path.relative_to(root).with_suffix("").parts): path
        for stage in STAGES
        for path in sorted((root / stage).rglob("*.py"))
    }
    modules = {}
    for name, path in paths.items():
        module = modules[name] = Module(path.relative_to(root).as_posix())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, Function):
                module.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                module.classes.add(node.name)
                for inner in node.body:
                    if isinstance(inner, Function):
                        module.functions[f"{node.name}.{inner.name}"] = inner
        for one in ast.walk(tree):
            if isinstance(one, ast.ImportFrom) and one.module:
                for alias in one.names:
                    whole = f"{one.module}.{alias.name}"
                    found = (whole, "") if whole in paths else (one.module, alias.name)
                    if found[0] in paths:
                        module.imports[alias.asname or alias.name] = found
    return modules


class Walk:
    """The functions of a journey in the order in which they are read."""

    def __init__(self, modules: dict[str, Module]) -> None:
        """Index the methods that a name alone tells."""
        self.modules = modules
        self.steps: list[tuple[str, str]] = []
        owners: dict[str, list[tuple[str, str]]] = {}
        for name, module in modules.items():
            for function in module.functions:
                owners.setdefault(function.rpartition(".")[2], []).append((name, function))
        self.only = {
            name: found[0]
            for name, found in owners.items()
            if len(found) == 1 and "." in found[0][1]
        }

    def go(self, module: str, function: str) -> None:
        """Read a function and, in the order of its text, what it calls."""
        if (module, function) in self.steps:
            return
        self.steps.append((module, function))
        body = self.modules[module].functions[function]
        calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
        for call in sorted(
            calls, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0)
        ):
            for found in self.called(module, function, call.func):
                self.go(*found)

    def called(self, module: str, function: str, what: ast.expr) -> Iterator[tuple[str, str]]:
        """The functions that a call leads to: none, one, or a constructor's two."""
        here = self.modules[module]
        if isinstance(what, ast.Name):
            yield from self.defined(*here.imports.get(what.id, (module, what.id)))
        elif isinstance(what, ast.Attribute):
            base = what.value.id if isinstance(what.value, ast.Name) else ""
            own = f"{function.partition('.')[0]}.{what.attr}"
            origin, inner = here.imports.get(base, ("", ""))
            if base in ("self", "cls") and own in here.functions:
                yield module, own
            elif origin and not inner:
                yield from self.defined(origin, what.attr)
            elif origin and f"{inner}.{what.attr}" in self.modules[origin].functions:
                yield origin, f"{inner}.{what.attr}"
            elif what.attr in self.only:
                yield self.only[what.attr]

    def defined(self, module: str, name: str) -> Iterator[tuple[str, str]]:
        """A function of a module, or what making an object of its class runs."""
        found = self.modules[module]
        if name in found.functions:
            yield module, name
        elif name in found.classes:
            for method in ("__init__", "__post_init__"):
                if f"{name}.{method}" in found.functions:
                    yield module, f"{name}.{method}"

    def files(self) -> list[str]:
        """The files as they are entered, one again for each return."""
        files: list[str] = []
        for module, _ in self.steps:
            path = self.modules[module].path
            if not files or files[-1] != path:
                files.append(path)
        return files


def walk(root: Path, entry: tuple[str, str]) -> Walk:
    """Read a journey from its entry, a file and a function."""
    found = Walk(read(root))
    path, function = entry
    found.go("draftrt." + path.removesuffix(".py").replace("/", "."), function)
    return found


def main() -> None:
    """Print a line for each journey, and the files most often returned to."""
    root = Path(__file__).resolve().parents[1]
    for name, entry in JOURNEYS.items():
        found = walk(root, entry)
        files = found.files()
        again = Counter(files)
        returns = len(files) - len(again)
        most = ", ".join(f"{path} {n - 1}" for path, n in again.most_common(3) if n > 1)
        print(f"{name}: {len(again)} files, {returns} returns, {len(found.steps)} functions")  # noqa: T201
        print(f"  most often returned to: {most or 'none'}")  # noqa: T201


if __name__ == "__main__":
    main()
