"""Which plan of a bundle runs a graph on this GPU, and opening it.

A plan is bound to a graph file, a backend, its version and some SMs; each mismatch has its own
refusal, because each is repaired differently.
"""

from __future__ import annotations

from types import ModuleType

from draftrt.backends import BACKENDS, EXTRAS, MODULES, PLANNED, TENSORRT_RTX, import_package
from draftrt.bundle import Bundle
from draftrt.errors import BackendError
from draftrt.manifest import PlanEntry
from draftrt.runtime.backends.cuda import Cuda
from draftrt.runtime.backends.trt import TrtSession


def open_plan(bundle: Bundle, graph: str, backend: str) -> TrtSession:
    """Open the plan of a graph on this machine's GPU.

    Args:
        bundle: the bundle.
        graph: name of the graph, ``draft`` or ``target``.
        backend: one of `draftrt.backends.PLANNED`.

    Raises:
        BackendError: a package or the GPU is missing, or no plan of the bundle runs on it.
        BundleError: the bundle has no such graph, or the plan is not of that graph.
    """
    entry = bundle.graph(graph)
    module = import_tensorrt(backend)
    plans_of(bundle, graph, backend)  # said before a missing GPU is
    cuda = Cuda(extra=EXTRAS[MODULES[backend]])
    plan = choose_plan(bundle, graph, backend, version=module.__version__, sm=cuda.sm)
    path = bundle.file(plan.file)
    is_stripped = plan.options.get("weights") == "stripped"
    return TrtSession(
        module,
        path,
        entry.signature,
        cuda,
        jit_cache=path.with_suffix(f".jit-sm{cuda.sm}"),
        weights=bundle.file(entry.file) if is_stripped else None,
    )


def import_tensorrt(backend: str) -> ModuleType:
    """Return a backend's Python module.

    Raises:
        BackendError: no such backend, or its package is missing; the hint names the extra.
    """
    if backend not in PLANNED:
        raise BackendError(f"no backend {backend!r}, there is {list(BACKENDS)}")
    name = MODULES[backend]
    return import_package(name, what=f"the {backend} backend")


def choose_plan(bundle: Bundle, graph: str, backend: str, *, version: str, sm: int) -> PlanEntry:
    """Return the plan of a graph that runs here; of several the one made for the fewest SMs.

    Args:
        bundle: the bundle.
        graph: name of the graph.
        backend: ``tensorrt-rtx`` or ``tensorrt``.
        version: of the installed backend.
        sm: compute capability of the GPU.

    Raises:
        BackendError: none does; the message says what the plans are for, the hint how to build.
    """
    what = f"{bundle.path}: {backend} plans of graph {graph!r}"
    command = _command(bundle, graph, backend, str(sm))
    plans = plans_of(bundle, graph, backend)
    for_gpu = [plan for plan in plans if sm in plan.sms]
    if not for_gpu:
        sms = sorted({sm for plan in plans for sm in plan.sms})
        raise BackendError(
            f"{what}: built for SM {', '.join(map(str, sms))}, this GPU is SM {sm}",
            hint=f"{command}; where TensorRT-RTX has no such SM, use --backend tensorrt",
        )
    usable = [plan for plan in for_gpu if plan.backend_version == version]
    if not usable:
        versions = ", ".join(sorted({plan.backend_version for plan in for_gpu}))
        raise BackendError(
            f"{what}: built by {backend} {versions}, installed is {version}, and a plan runs only "
            "on the version that built it",
            hint=command,
        )
    return min(usable, key=lambda plan: (len(plan.sms), plan.file))


def plans_of(bundle: Bundle, graph: str, backend: str) -> list[PlanEntry]:
    """Return the plans of a graph as it is in the bundle now, for whatever GPU.

    Raises:
        BackendError: there is none; the hint names the command that builds one.
    """
    what = f"{bundle.path}: {backend} plans of graph {graph!r}"
    hint = _command(bundle, graph, backend, "SM")
    plans = [
        plan
        for plan in bundle.manifest.plans.values()
        if plan.graph == graph and plan.backend == backend
    ]
    if not plans:
        raise BackendError(f"{what}: there is none", hint=hint)
    present = bundle.manifest.files[bundle.graph(graph).file].sha256
    fresh = [plan for plan in plans if plan.graph_sha256 == present]
    if not fresh:
        raise BackendError(f"{what}: built from another ONNX file than is there now", hint=hint)
    return fresh


def _command(bundle: Bundle, graph: str, backend: str, sm: str) -> str:
    command = f"draftrt build {bundle.path} --graph {graph} --backend {backend}"
    return f"{command} --sm {sm}" if backend == TENSORRT_RTX else command
