"""What is compared with a bundle's PyTorch module: its graphs on ONNX Runtime, or its plan.

ONNX Runtime's CPU provider has no bfloat16 kernels. A bf16 graph therefore runs as its float32
twin, the same nodes with the same rounded weights, and is compared with a module that computes in
float32 as well: what it proves is the graph, not the rounding in between, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from draftrt.backends import ONNXRUNTIME, require
from draftrt.bundle import Bundle
from draftrt.files import temporary_folder
from draftrt.manifest import GraphEntry
from draftrt.quantization import DRAFT, PRODUCTS, Scheme
from draftrt.runtime.backends.base import GraphSession
from draftrt.runtime.backends.ort import OrtSession
from draftrt.signature import Signature, TensorSpec
from draftrt.spec import DrafterSpec, Precision
from draftrt.validate.parity.inner_outputs import add_taps
from draftrt.validate.rounds.module import ReferenceRounds

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
        open: opens it as the runtime does.
        note: what the comparison cannot show; empty when nothing.
        as_run: whether products with quantised weights run on the runtime's int8 kernels, not as
            the graph writes them; that has limits of its own.
    """

    label: str
    signature: Signature
    outputs: tuple[TensorSpec, ...]
    open: Callable[[], AbstractContextManager[GraphSession]]
    note: str = ""
    as_run: bool = False


@contextmanager
def subjects_of(bundle: Bundle, backend: str) -> Iterator[list[Subject]]:
    """Give what a backend runs of a bundle's draft graph, twins of bf16 graphs for a while.

    Args:
        bundle: the bundle.
        backend: one of `draftrt.backends.BACKENDS`.

    Raises:
        BackendError: a package is missing.
    """
    require("polygraphy", what="parity")
    spec, entry = bundle.drafter(), bundle.graph(DRAFT)
    if backend != ONNXRUNTIME:
        yield [_plan(bundle, entry, backend)]
        return
    require("onnxruntime", what="parity")
    from draftrt.export.graph.float32 import runnable

    with ExitStack() as stack:
        scratch = stack.enter_context(temporary_folder("parity"))
        files = dict.fromkeys(one for one in (entry.file, entry.flexible) if one)
        ready = {
            file: stack.enter_context(runnable(bundle.file(file), entry.precision, scratch))
            for file in files
        }
        paths = {file: path for file, (path, _) in ready.items()}
        made = [_tapped(paths[entry.file], spec, entry)]
        if entry.flexible:
            made.append(_plain(paths[entry.flexible], entry))
        if has_int8_kernels(entry):
            made.append(_plain(paths[entry.flexible or entry.file], entry, as_run=True))
        yield made


def has_int8_kernels(entry: GraphEntry) -> bool:
    """Return whether the runtime rounds activations to int8 to multiply with weights of a graph."""
    if entry.precision is Precision.BF16:  # which it does not run
        return False
    quantised = (entry.quantization.get(part) for part in PRODUCTS)
    kept = (form.scheme for form in entry.kept.values())
    return any(scheme in (Scheme.INT4, Scheme.INT8) for scheme in (*quantised, *kept))


def reference_of(bundle: Bundle, backend: str) -> ReferenceRounds:
    """Return the module that a subject of a backend is compared with, ready to draft."""
    from draftrt.export.check.reference import module_from_bundle

    entry = bundle.graph(DRAFT)
    is_twin = backend == ONNXRUNTIME and entry.precision is Precision.BF16
    precision = Precision.FP32 if is_twin else entry.precision
    module = module_from_bundle(bundle, is_wide=is_twin)
    return ReferenceRounds(module, precision, entry.max_context, refuses_overflow=True)


def _tapped(path: Path, spec: DrafterSpec, entry: GraphEntry) -> Subject:
    from draftrt.export.models.signature import draft_signature

    content, names = add_taps(path)
    signature = run_signature(entry)
    whole = draft_signature(spec, entry.precision, entry.max_context, names)
    taps = tuple(tensor for tensor in whole.outputs if tensor.name in names)
    outputs = (*signature.outputs, *taps)
    return Subject(
        label=path.name,
        signature=signature,
        outputs=outputs,
        open=lambda: OrtSession(
            path, replace(signature, outputs=outputs), content=content, is_exact=True
        ),
        note=TWIN_NOTE if entry.precision is Precision.BF16 else "",
    )


def _plain(path: Path, entry: GraphEntry, *, as_run: bool = False) -> Subject:
    signature = run_signature(entry)
    return Subject(
        label=path.name,
        signature=signature,
        outputs=signature.outputs,
        open=lambda: OrtSession(
            path,
            signature,
            can_grow=path.name != entry.file,
            is_exact=not as_run,
            is_dequantised=entry.is_fp8,
        ),
        as_run=as_run,
    )


def _plan(bundle: Bundle, entry: GraphEntry, backend: str) -> Subject:
    from draftrt.runtime.backends.plans import open_plan

    return Subject(
        label=f"plan of {entry.file}",
        signature=entry.signature,
        outputs=tuple(tensor for tensor in entry.signature.outputs if not tensor.alias),
        open=lambda: open_plan(bundle, DRAFT, backend),
        note=f"caches stay on the GPU and are compared through what {backend} drafts from them",
    )


def run_signature(entry: GraphEntry) -> Signature:
    """Return a graph's table as ONNX Runtime runs it: float32 in the place of bfloat16."""

    def wide(tensor: TensorSpec) -> TensorSpec:
        return replace(tensor, dtype="float32") if tensor.dtype == "bfloat16" else tensor

    return replace(
        entry.signature,
        inputs=tuple(map(wide, entry.signature.inputs)),
        outputs=tuple(map(wide, entry.signature.outputs)),
    )
