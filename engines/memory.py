"""Memory that a graph takes: on the device that runs its plan, and here while the plan is built.

Weights and caches are counted. A plan's size and the peak of its build are straight lines through
what was measured with TensorRT-RTX 1.7 on a machine without a GPU (docs/log.md). Scratch memory on
a device was not measured: it is taken as what a call reads and returns, twice, and a fixed part.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftrt.bundle import Bundle
from draftrt.dtypes import BY_NAME
from draftrt.engines.devices import Device
from draftrt.errors import BuildError
from draftrt.manifest import GraphEntry
from draftrt.provenance import in_gb, total_memory
from draftrt.signature import (
    Signature,
    TensorSpec,
    cache_bytes,
    cache_specs,
    state_bytes,
    state_specs,
)
from draftrt.spec import DrafterSpec

PLAN_BYTES, PLAN_LAYER_BYTES, PLAN_STEP_BYTES = 2_650_000, 440_000, 230_000
PLAN_RECURRENT_LAYER_BYTES = 2_700_000  # a layer of linear attention, built for 1 to 64 rows
# What the builder and its Python packages take was 297 to 353 MB, by installation.
BUILD_BYTES, BUILD_LAYER_BYTES, BUILD_FACTOR = 326 * 10**6, 9 * 10**6, 2.25
SCRATCH_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMemory:
    """What one graph takes, in bytes.

    Attributes:
        weights: of the graph, each once.
        read: weights that a call reads whole.
        caches: at the context asked for, and both copies of states, whatever the context.
        scratch: estimate of what a call needs besides.
        plan: size of a plan file, predicted; it is what the weights take on the device.
        build: peak resident memory of the build, predicted.
        snapshot: one copy of the states, which a runtime keeps on the host to go back to; 0
            without any.
    """

    weights: int
    read: int
    caches: int
    scratch: int
    plan: int
    build: int
    snapshot: int = 0

    @property
    def device(self) -> int:
        """Memory on the device."""
        return self.plan + self.caches + self.scratch


def graph_memory(
    weights: int,
    read: int,
    signature: Signature,
    max_context: int,
    context: int | None = None,
    steps: int = 0,
) -> GraphMemory:
    """Count one graph.

    Args:
        weights: bytes of its weights.
        read: those of them that a call reads whole.
        signature: of the graph, caches at their largest.
        max_context: rows of its caches.
        context: rows in question; None: all. TensorRT plans have caches of all rows.
        steps: drafts that are drafted one after the other; see `num_steps`.
    """
    largest = {name: span.max for name, span in signature.dimensions.items()}
    caches = {tensor.name for tensor in cache_specs(signature)}
    states = {tensor.name for tensor in state_specs(signature)}
    rows = min(max_context, context or max_context)
    passed = [t for t in signature.inputs if t.name not in caches | states]
    passed += [t for t in signature.outputs if not t.alias and not t.becomes]
    layers = len({name.rpartition("_")[2] for name in caches | states})
    recurrent = sum(name.startswith("past_state_") for name in states)
    own = (layers - recurrent) * PLAN_LAYER_BYTES + recurrent * PLAN_RECURRENT_LAYER_BYTES
    return GraphMemory(
        weights=weights,
        read=read,
        caches=cache_bytes(signature) * rows // max_context + state_bytes(signature),
        scratch=SCRATCH_BYTES + 2 * sum(_bytes(t, largest) for t in passed),
        plan=weights + PLAN_BYTES + own + steps * PLAN_STEP_BYTES,
        build=BUILD_BYTES + layers * BUILD_LAYER_BYTES + round(BUILD_FACTOR * weights),
        snapshot=state_bytes(signature) // 2,
    )


def num_steps(spec: DrafterSpec | None) -> int:
    """Return how many drafts a drafter's graph drafts one after the other."""
    if spec is None or (spec.markov is None and spec.selector is None):
        return 0
    return spec.num_draft_tokens


def bundle_memory(bundle: Bundle, context: int | None = None) -> dict[str, GraphMemory]:
    """Count the graphs of a bundle, name by name; see `graph_memory`."""
    return {
        name: _entry_memory(bundle, entry, context)
        for name, entry in bundle.manifest.graphs.items()
    }


def _entry_memory(bundle: Bundle, entry: GraphEntry, context: int | None) -> GraphMemory:
    weights = bundle.weight_bytes(entry)
    read = entry.read_bytes or weights
    steps = (
        num_steps(bundle.manifest.drafter) if entry is bundle.manifest.graphs.get("draft") else 0
    )
    return graph_memory(weights, read, entry.signature, entry.max_context, context, steps)


def check_fits(bundle: Bundle, graphs: Sequence[str], device: Device | None) -> None:
    """Refuse builds whose plans this machine cannot make or the device cannot run.

    Args:
        bundle: the bundle.
        graphs: the graphs to build, one after the other.
        device: what is to run the graphs of the bundle, all at once; None for anything.

    Raises:
        BuildError: with the numbers, everything that does not fit.
    """
    memory = bundle_memory(bundle)
    wanted, total = {name: memory[name] for name in graphs}, total_memory()
    problems = [
        f"the build of {name} takes about {in_gb(one.build)}, this machine has "
        f"{in_gb(total)} of memory"
        for name, one in wanted.items()
        if total is not None and one.build > total
    ]
    free = shutil.disk_usage(bundle.path).free
    if (size := sum(one.plan for one in wanted.values())) > free:
        what = "the plan takes" if len(wanted) == 1 else "the plans take"
        problems.append(f"{what} about {in_gb(size)}, the disk has {in_gb(free)} left")
    if device is not None and not fits(memory.values(), device):
        needs = ", ".join(f"{name} {in_gb(one.device)}" for name, one in memory.items())
        problems.append(
            f"{device.name} has {in_gb(device.usable_bytes)} of its {in_gb(device.memory_bytes)} "
            f"for models, the graphs need "
            f"{in_gb(sum(one.device for one in memory.values()))} ({needs})"
        )
    if problems:
        raise BuildError(
            f"{' and '.join(wanted)}: does not fit: " + "; ".join(problems),
            hint="`draftrt plan` shows what fits where; a smaller --max-context or --quantize int4 "
            "at export takes less; `draftrt build --ignore-memory` builds anyway",
        )


def fits(graphs: Iterable[GraphMemory], device: Device) -> bool:
    """Return whether graphs run on a device together."""
    return sum(graph.device for graph in graphs) <= device.usable_bytes


def _bytes(tensor: TensorSpec, largest: dict[str, int]) -> int:
    size = BY_NAME[tensor.dtype].itemsize
    for length in tensor.shape:
        size *= largest[length] if isinstance(length, str) else length
    return size
