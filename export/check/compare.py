"""The gate every export passes: checker, names, and the graph against its module over rounds.

ONNX Runtime's CPU provider has no bfloat16 kernels, so a bf16 graph is checked through its float32
twin: the same nodes with every bfloat16 type replaced and the bfloat16 weights widened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftrt.errors import ExportError
from draftrt.export.check.feeds import empty_caches, round_feeds, rounds_to_check, walk_to_compare
from draftrt.export.check.reference import reference_module
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.models.drafter import Drafter
from draftrt.export.weights.overflow import is_finite, overflow_in
from draftrt.onnx_session import load_onnxruntime
from draftrt.signature import Signature
from draftrt.spec import DrafterSpec, Precision, Profile

Feeds = dict[str, NDArray[Any]]


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


CHOSEN_FROM = ("logits", "candidate_ids", "candidate_scores")  # the others where it is a selector
TOLERANCE = {Precision.FP32: 2e-4, Precision.FP16: 4e-2, Precision.BF16: 2e-4}


def ids_differ(want: dict[str, Any], ids: NDArray[Any], precision: Precision) -> str | None:
    """Return what is wrong with the ids of a round, None where nothing is.

    In 16 bits the first different id may be a tie within the tolerance; in float32 never.

    Args:
        want: outputs of the module, those of `CHOSEN_FROM` among them.
        ids: [1, n] int64, draft ids of the graph, not all equal to the module's.
        precision: of the computation.
    """
    expected = want["draft_ids"][0]
    row = int(np.flatnonzero(expected != ids[0])[0])
    scores = want.get("candidate_scores", want["logits"])[0, row]
    order = np.sort(scores)
    is_tie = order[-1] - order[-2] <= _tie(scores, precision)
    if "candidate_ids" in want:
        candidates, logits = want["candidate_ids"][0, row], want["logits"][0, row]
        is_tie |= _may_fall_out(candidates, candidates[scores.argmax()], logits, precision)
        is_tie |= _may_come_in(candidates, int(ids[0, row]), logits, precision)
    if precision is not Precision.FP32 and is_tie:
        return None
    return f"draft ids {ids[0].tolist()}, expected {expected.tolist()}"


def candidates_differ(
    want: dict[str, Any], got: Mapping[str, NDArray[Any]], precision: Precision
) -> str | None:
    """Return what is wrong with the candidates of a round that drafted the same ids.

    In 16 bits the last of a row's candidates may be others where that is a tie within the
    tolerance; scores are compared of those that both have.

    Args:
        want: outputs of the module, ``logits`` among them.
        got: ``candidate_ids`` and ``candidate_scores`` [1, n, k] of the graph.
        precision: of the computation.
    """
    rows = zip(want["candidate_ids"][0], got["candidate_ids"][0], strict=True)
    for row, (expected, found) in enumerate(rows):
        logits, scores = want["logits"][0, row], want["candidate_scores"][0, row]
        others = [int(one) for one in found if one not in expected]
        may_differ = precision is not Precision.FP32
        if others and not (
            may_differ and all(_may_come_in(expected, one, logits, precision) for one in others)
        ):
            return f"candidates {sorted(found.tolist())}, expected {sorted(expected.tolist())}"
        _, at, where = np.intersect1d(expected, found, return_indices=True)
        gaps = np.abs(scores[at] - got["candidate_scores"][0, row][where])
        gap = float(gaps.max(initial=0.0))
        gap /= max(1.0, float(np.abs(scores).max()))
        if not gap <= TOLERANCE[precision]:
            return f"candidate_scores by {gap:.2e} (relative to their largest value)"
    return None


def _tie(scores: NDArray[Any], precision: Precision) -> float:
    return 4 * TOLERANCE[precision] * max(1.0, float(np.abs(scores).max()))


def _may_fall_out(
    candidates: NDArray[Any], chosen: int, logits: NDArray[Any], precision: Precision
) -> bool:
    """Whether the chosen candidate is one by no more than a tie with those left out."""
    left_out = np.delete(logits, candidates)
    return bool(logits[chosen] - left_out.max(initial=-np.inf) <= _tie(logits, precision))


def _may_come_in(
    candidates: NDArray[Any], other: int, logits: NDArray[Any], precision: Precision
) -> bool:
    """Whether the other choice is no candidate by no more than a tie with the last one.

    A drafter with a selector drafts in the target's own vocabulary: its ids are columns.
    """
    if other in candidates:
        return False
    return bool(logits[candidates].min() - logits[other] <= _tie(logits, precision))
