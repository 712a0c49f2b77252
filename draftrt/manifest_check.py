"""What a manifest says, looked at once when it is read: every later stage relies on it."""

from __future__ import annotations

from draftrt.bundle_files import name_problem
from draftrt.errors import BundleError
from draftrt.manifest import Manifest


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        BundleError: names every entry that cannot be so.
    """
    problems = [*_name_problems(manifest), *_unlisted(manifest)]
    if problems:
        raise BundleError("; ".join(problems))


def _name_problems(manifest: Manifest) -> list[str]:
    """Return which names of files do not lie in the bundle."""
    names = {f"files.{name!r:.80}": name for name in manifest.files}
    names |= {f"links.{name!r:.80}": name for name in manifest.links}
    for key, graph in manifest.graphs.items():
        names |= {f"graphs.{key}.file": graph.file, f"graphs.{key}.data": graph.data}
        if graph.flexible:
            names[f"graphs.{key}.flexible"] = graph.flexible
        names |= {f"graphs.{key}.borrowed": file for file in graph.borrowed.values()}
    for key, plan in manifest.plans.items():
        names |= {f"plans.{key!r:.80}.file": plan.file, f"plans.{key!r:.80}.log": plan.log}
    return [
        f"{where}: {problem}" for where, name in names.items() if (problem := name_problem(name))
    ]


def _unlisted(manifest: Manifest) -> list[str]:
    """Return which files of graphs are not listed with a size and a hash."""
    known = {*manifest.files, *manifest.links}
    found = []
    for key, graph in manifest.graphs.items():
        named = {graph.file, graph.data, graph.flexible or graph.file, *graph.borrowed.values()}
        found += [f"graphs.{key}: {name} is not in files" for name in sorted(named - known)]
    return found
