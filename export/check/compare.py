"""The gate every export passes: checker, names, and the graph against its module over rounds.

ONNX Runtime's CPU provider has no bfloat16 kernels, so a bf16 graph is checked through its float32
twin: the same nodes with every bfloat16 type replaced and the bfloat16 weights widened.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftrt.errors import ExportError
from draftrt.export.check.assemble import empty_caches, reference_module
from draftrt.export.check.check_ids import CHOSEN_FROM, TOLERANCE, candidates_differ, ids_differ
from draftrt.export.check.linked_file import checkable
from draftrt.export.graph.float32 import widened, write_float32_twin
from draftrt.export.models.drafter import Drafter
from draftrt.export.models.signature import round_feeds, walk_to_compare
from draftrt.export.weights.overflow import is_finite, overflow_in
from draftrt.export.weights.tensors import GraphTensor
from draftrt.onnx_session import load_onnxruntime
from draftrt.profile import Profile
from draftrt.signature import Signature
from draftrt.spec import DrafterSpec, Precision

Feeds = dict[str, NDArray[Any]]


def check_file(path: Path, signature: Signature) -> None:
    """Run the ONNX checker in full and compare the file's inputs and outputs with the signature.

    Raises:
        ExportError: the file is invalid or its names, order or shapes are not the signature's.
    """
    import onnx

    try:
        with checkable(path) as file:
            onnx.checker.check_model(str(file), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{path.name} is not valid ONNX: {error!s:.400}") from error
    graph = onnx.load(str(path), load_external_data=False).graph
    for kind, values, specs in (
        ("inputs", graph.input, signature.inputs),
        ("outputs", graph.output, signature.outputs),
    ):
        got = [value.name for value in values]
        if got != [spec.name for spec in specs]:
            raise ExportError(
                f"{path.name} {kind}: got {got}, expected {[spec.name for spec in specs]}"
            )
        for value, spec in zip(values, specs, strict=True):
            dims = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in value.type.tensor_type.shape.dim
            ]
            if len(dims) != len(spec.shape) or any(
                isinstance(want, int) and want != have
                for want, have in zip(spec.shape, dims, strict=True)
            ):
                raise ExportError(
                    f"{path.name} {kind}: {spec.name} has shape {dims}, expected {list(spec.shape)}"
                )


def rounds_to_check(spec: DrafterSpec, max_context: int) -> list[tuple[int, int]]:
    """Return (context length, new rows) of the rounds that are compared: 0, 1, next, and long."""
    longest = max_context - spec.block_size
    first = min(7, longest - 2)
    return [(0, 1), (1, first), (1 + first, min(2, longest - 1 - first)), (longest - 2, 2)]


def check_graph(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
) -> list[str]:
    """Run the graph on ONNX Runtime against its module.

    Returns:
        One line a round: what was compared and the largest difference.

    Raises:
        ExportError: an id, confidence or cache row differs beyond the precision's tolerance.
    """
    if precision is Precision.BF16:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".twin-") as folder:
            twin = Path(folder) / path.name
            write_float32_twin(path, twin)
            wide = {name: widened(tensor) for name, tensor in tensors.items()}
            what = "bf16 graph as its float32 twin"
            return _compare(twin, spec, wide, signature, Precision.FP32, max_context, what)
    what = f"{precision.value} graph"
    return _compare(path, spec, tensors, signature, precision, max_context, what)


def _compare(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
    what: str,
) -> list[str]:
    walk = walk_to_compare(signature, precision)
    module = reference_module(
        spec, tensors, extra_outputs=CHOSEN_FROM, profile=Profile.FIXED, is_sampled=walk is not None
    )
    session = open_session(path)
    rng = np.random.default_rng(0)
    caches = [
        cache.normal_(std=0.5, generator=torch.Generator().manual_seed(7)).numpy()
        for cache in empty_caches(spec, precision, max_context)
    ]
    lines = []
    for length, rows in rounds_to_check(spec, max_context):
        feeds = round_feeds(spec, rng, new_rows=rows, context_length=length, walk=walk)
        want = run_module(module, feeds, caches)
        check_finite(module, feeds, caches, want, precision, f"{path.name}, context {length}")
        got, caches = run_session(session, feeds, caches)
        compare_round(path.name, spec, want, got, caches, (length, rows), precision)
        lines.append(f"{what}: context {length} + {rows} rows, same ids and caches as PyTorch")
    return lines


def compare_round(
    name: str,
    spec: DrafterSpec,
    want: dict[str, Any],
    got: Feeds,
    caches: list[NDArray[Any]],
    sizes: tuple[int, int],
    precision: Precision,
) -> None:
    """Compare one round of a graph with that of its module.

    Args:
        name: of the graph, for the message.
        spec: the drafter.
        want: what the module returned.
        got: what the graph returned.
        caches: caches the graph wrote.
        sizes: context length and new rows.
        precision: of the computation.

    Raises:
        ExportError: an id, confidence or cache row differs beyond the precision's tolerance.
    """
    length, rows = sizes
    error = _difference(spec, want, got, caches, length + rows, precision)
    error = error or _sampled_difference(want, got, precision)
    if error is not None:
        raise round_differs(name, sizes, error)


def round_differs(name: str, sizes: tuple[int, int], error: str) -> ExportError:
    """Return the refusal of a graph whose round, of so much context and new rows, differs."""
    return ExportError(
        f"{name}: ONNX Runtime and the PyTorch module differ at context length {sizes[0]} with "
        f"{sizes[1]} new rows: {error}",
        hint="the exported graph is wrong; this is a defect of draftrt, please report it",
    )


def open_session(path: Path, weights: Path | None = None) -> Any:
    """Open a graph on ONNX Runtime's CPU provider; weights stay mapped, nothing is packed.

    Args:
        path: ONNX file.
        weights: folder of its external data; None for that of the file.
    """
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # An arena keeps what it once grew to: every weight widened or dequantised, one after the other.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # widen a weight when it is needed
    # Folding would keep a float32 copy of every 16-bit weight: the CPU has no 16-bit products.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    content: str | bytes = str(path)
    if weights is not None:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(weights))
        content = path.read_bytes()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_module(module: Drafter, feeds: Feeds, caches: list[NDArray[Any]]) -> dict[str, Any]:
    """Run a module once; return its outputs by name, the caches under ``caches``."""
    with torch.no_grad():
        out = module(
            *(torch.from_numpy(feed) for feed in feeds.values()),
            *(torch.from_numpy(cache) for cache in caches),
        )
    count = len(module.outputs)
    return {
        **dict(zip(module.outputs, (t.numpy() for t in out[:count]), strict=True)),
        "caches": [t.numpy() for t in out[count:]],
    }


def check_finite(
    module: Drafter,
    feeds: Feeds,
    caches: list[NDArray[Any]],
    found: dict[str, Any],
    precision: Precision,
    where: str,
    *,
    layer: int | None = None,
) -> None:
    """Refuse a drafter that leaves the range of float16.

    Args:
        module: it computed what was found.
        feeds: its inputs but the caches.
        caches: its caches.
        found: what it returned.
        precision: of the computation.
        where: for the message.
        layer: the layer of the drafter that is the module's only one; None for a whole one.

    Raises:
        ExportError: names the tensor.
    """
    arrays = [*(value for name, value in found.items() if name != "caches"), *found["caches"]]
    if precision is not Precision.FP16 or is_finite(arrays):
        return
    error = overflow_in(module, lambda: run_module(module, feeds, caches), where, layer=layer)
    if error is not None:
        raise error


def run_session(
    session: Any, feeds: Feeds, caches: list[NDArray[Any]]
) -> tuple[Feeds, list[NDArray[Any]]]:
    """Run a graph once; return its outputs by name, and the caches."""
    names = [item.name for item in session.get_inputs()]
    out = session.run(None, {**feeds, **dict(zip(names[len(feeds) :], caches, strict=True))})
    named = {item.name: value for item, value in zip(session.get_outputs(), out, strict=True)}
    written = [value for name, value in named.items() if name.startswith("present_")]
    return named, written


def relative_gap(want: NDArray[Any], got: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest value wanted, one at least.

    NaN on either side gives NaN, which is within no limit.
    """
    wide = want.astype(np.float32, copy=False)
    gaps = wide - got.astype(np.float32, copy=False)
    largest = max(1.0, float(wide.max()), -float(wide.min()))
    return float(np.abs(gaps, out=gaps).max()) / largest


def _difference(
    spec: DrafterSpec,
    want: dict[str, Any],
    got: Feeds,
    caches: list[NDArray[Any]],
    committed: int,
    precision: Precision,
) -> str | None:
    limit = TOLERANCE[precision]
    for index, (a, b) in enumerate(zip(want["caches"], caches, strict=True)):
        rows = slice(0, committed + spec.block_size)
        gap = relative_gap(a[:, :, rows], b[:, :, rows])
        if not gap <= limit:
            return f"cache {index} by {gap:.2e} (relative to its largest value), limit {limit:.0e}"
    same_ids = np.array_equal(want["draft_ids"], got["draft_ids"])
    if "confidence" in want and same_ids:  # a tie resolved otherwise conditions later confidences
        gap = float(np.abs(want["confidence"] - got["confidence"]).max())
        if not gap <= limit:
            return f"confidence by {gap:.2e}, limit {limit:.0e}"
    return None if same_ids else ids_differ(want, got["draft_ids"], precision)


def _sampled_difference(want: dict[str, Any], got: Feeds, precision: Precision) -> str | None:
    """Compare what drafts are drawn from; after a tie resolved otherwise it may differ."""
    if not np.array_equal(want["draft_ids"], got["draft_ids"]):
        return None
    if "vocabulary_ids" in got and not np.array_equal(
        want["vocabulary_ids"], got["vocabulary_ids"]
    ):
        return "vocabulary_ids"
    if "logits" in want and "logits" in got:
        gap = relative_gap(np.sort(want["logits"], axis=-1), np.sort(got["logits"], axis=-1))
        if not gap <= TOLERANCE[precision]:
            return f"logits by {gap:.2e} (relative to its largest value)"
    if "candidate_scores" in want and "candidate_scores" in got:
        return candidates_differ(want, got, precision)
    return None
