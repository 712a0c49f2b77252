"""The graphs of a bundle that get a plan, and the command that then runs them on the device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from draftrt.bundle import Bundle
from draftrt.engines.capabilities import Backend
from draftrt.quantization import DRAFT, TARGET

ALL = "all"
GRAPHS = (DRAFT, TARGET, ALL)


def chosen_graphs(bundle: Bundle, wanted: str = ALL) -> tuple[str, ...]:
    """Return the graphs to build: one by its name, or all that the bundle has.

    Raises:
        BundleError: there is no graph of that name.
    """
    if wanted == ALL:
        return tuple(name for name in (DRAFT, TARGET) if name in bundle.manifest.graphs)
    bundle.graph(wanted)
    return (wanted,)


def next_lines(bundle: Bundle, backend: Backend, sms: Sequence[int] = ()) -> list[str]:
    """Return what is left to do before the bundle runs on its device, or the command that does.

    Args:
        bundle: the bundle, with its plans.
        backend: what is to run it.
        sms: that plans were built for, for those that are missing.
    """
    manifest, folder = bundle.manifest, shlex.quote(str(bundle.path))
    planned = {plan.graph for plan in manifest.plans.values() if plan.backend == backend.value}
    chosen = f"--backend {backend.value}"
    missing = [name for name in manifest.graphs if name not in planned]
    if missing:
        place = f" --sm {','.join(map(str, sms))}" if sms else ""
        names = " and ".join(missing)
        which = missing[0] if len(missing) == 1 else ALL
        return [
            f"the graph of the {names} has no plan yet:",
            f"  draftrt build {folder} {chosen} --graph {which}{place}",
        ]
    if TARGET not in manifest.graphs:
        return [
            "no target graph: the target runs through the Hugging Face port, in PyTorch:",
            f"  draftrt run {folder} {chosen} --device cuda --target FOLDER --prompt TEXT",
        ]
    return ["on the device:", f"  draftrt run {folder} {chosen} --prompt TEXT"]
