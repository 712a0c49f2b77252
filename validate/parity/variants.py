"""What is compared with a bundle's PyTorch module: its graphs on ONNX Runtime, or its plan.

ONNX Runtime's CPU provider has no bfloat16 kernels. A bf16 graph therefore runs as its float32
twin, the same nodes with the same rounded weights, and is compared with a module that computes in
float32 as well: what it proves is the graph, not the rounding in between, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from draftrt.backends import ONNXRUNTIME, require
from draftrt.bundle import Bundle
from draftrt.manifest import GraphEntry
from draftrt.quantization import PRODUCTS, Scheme
from draftrt.signature import Signature, TensorSpec
from draftrt.spec import DrafterSpec, Precision
from draftrt.validate.parity.inner_outputs import add_taps
from draftrt.validate.rounds.module import ReferenceRounds
from draftrt.validate.rounds.runners import (
    PolygraphyRounds,
    Rounds,
    SessionRounds,
    onnxruntime_errors,
    onnxruntime_runner,
)

TWIN_NOTE = (
    "bf16 as far as CPU kernels go: ONNX Runtime has none for bfloat16, so the graph runs as its "
    "float32 twin with the rounded weights; rounding between the nodes is not seen"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One graph, ready to be opened.

    Attributes:
        label: its file.
        signature: its table, with the element types it runs with.
        outputs: what is compared.
        is_fixed: whether its caches always have all their rows.
        open: gives what drafts; its argument is the rows of the caches for each sequence in turn.
        note: what the comparison cannot show; empty when nothing.
        as_run: whether products with quantised weights run on the runtime's int8 kernels, not as
            the graph writes them; that has limits of its own.
    """

    label: str
    signature: Signature
    outputs: tuple[TensorSpec, ...]
    is_fixed: bool
    open: Callable[[Iterable[int]], AbstractContextManager[Rounds]]
    note: str = ""
    as_run: bool = False


def subjects_of(bundle: Bundle, backend: str, scratch: Path) -> list[Subject]:
    """Return what a backend runs of a bundle's draft graph.

    Args:
        bundle: the bundle.
        backend: one of `draftrt.backends.BACKENDS`.
        scratch: an empty folder for a while; takes the twin of a bf16 graph.

    Raises:
        BackendError: a package is missing.
    """
    require("polygraphy", what="parity")
    spec, entry = bundle.drafter(), bundle.graph("draft")
    if backend != ONNXRUNTIME:
        return [_plan(bundle, entry, backend)]
    require("onnxruntime", what="parity")
    made = [_tapped(_ready(bundle, entry.file, entry, scratch), spec, entry)]
    if entry.flexible:
        made.append(_plain(_ready(bundle, entry.flexible, entry, scratch), entry))
    if has_int8_kernels(entry):
        path = _ready(bundle, entry.flexible or entry.file, entry, scratch)
        made.append(_plain(path, entry, as_run=True))
    return made


def has_int8_kernels(entry: GraphEntry) -> bool:
    """Return whether the runtime rounds activations to int8 to multiply with weights of a graph."""
    if entry.precision is Precision.BF16:  # which it does not run
        return False
    quantised = (entry.quantization.get(part) for part in PRODUCTS)
    return any(scheme in (Scheme.INT4, Scheme.INT8) for scheme in quantised)


def reference_of(bundle: Bundle, backend: str) -> ReferenceRounds:
    """Return the module that a subject of a backend is compared with, ready to draft."""
    from draftrt.export.check.reference import module_from_bundle

    entry = bundle.graph("draft")
    is_twin = backend == ONNXRUNTIME and entry.precision is Precision.BF16
    precision = Precision.FP32 if is_twin else entry.precision
    module = module_from_bundle(bundle, is_wide=is_twin)
    return ReferenceRounds(module, precision, entry.max_context, refuses_overflow=True)


def _ready(bundle: Bundle, file: str, entry: GraphEntry, scratch: Path) -> Path:
    """Return a graph that ONNX Runtime can run: the file itself, or its twin."""
    if entry.precision is not Precision.BF16:
        return bundle.file(file)
    from draftrt.export.graph.float32 import write_float32_twin

    twin = scratch / file
    write_float32_twin(bundle.file(file), twin)
    return twin


def _tapped(path: Path, spec: DrafterSpec, entry: GraphEntry) -> Subject:
    from draftrt.export.models.signature import draft_signature

    content, names = add_taps(path, spec)
    signature = run_signature(entry)
    whole = draft_signature(spec, entry.precision, entry.max_context, names)
    taps = tuple(tensor for tensor in whole.outputs if tensor.name in names)
    return Subject(
        label=path.name,
        signature=signature,
        outputs=(*signature.outputs, *taps),
        is_fixed=True,
        open=lambda rows: _on_onnxruntime(content, path.parent, signature, rows),
        note=TWIN_NOTE if entry.precision is Precision.BF16 else "",
    )


def _plain(path: Path, entry: GraphEntry, *, as_run: bool = False) -> Subject:
    signature = run_signature(entry)
    return Subject(
        label=path.name,
        signature=signature,
        outputs=signature.outputs,
        is_fixed=path.name == entry.file,
        open=lambda rows: _on_onnxruntime(path, path.parent, signature, rows, as_run=as_run),
        as_run=as_run,
    )


def _plan(bundle: Bundle, entry: GraphEntry, backend: str) -> Subject:
    @contextmanager
    def opened(rows: Iterable[int]) -> Iterator[Rounds]:
        from draftrt.runtime.backends.plans import open_plan

        with open_plan(bundle, "draft", backend) as session:
            yield SessionRounds(session)

    return Subject(
        label=f"plan of {entry.file}",
        signature=entry.signature,
        outputs=tuple(tensor for tensor in entry.signature.outputs if not tensor.alias),
        is_fixed=True,
        open=opened,
        note=f"caches stay on the GPU and are compared through what {backend} drafts from them",
    )


@contextmanager
def _on_onnxruntime(
    model: Path | bytes,
    weights: Path,
    signature: Signature,
    rows: Iterable[int],
    *,
    as_run: bool = False,
) -> Iterator[Rounds]:
    with (
        onnxruntime_errors(f"{weights}: its draft graph" if isinstance(model, bytes) else model),
        onnxruntime_runner(model, weights, as_run=as_run) as runner,
    ):
        yield PolygraphyRounds(runner, signature, rows)


def run_signature(entry: GraphEntry) -> Signature:
    """Return a graph's table as ONNX Runtime runs it: float32 in the place of bfloat16."""

    def wide(tensor: TensorSpec) -> TensorSpec:
        return replace(tensor, dtype="float32") if tensor.dtype == "bfloat16" else tensor

    return replace(
        entry.signature,
        inputs=tuple(map(wide, entry.signature.inputs)),
        outputs=tuple(map(wide, entry.signature.outputs)),
    )
