"""The gate every export passes: a graph on ONNX Runtime against its PyTorch module.

Rounds are computed on both sides from the same feeds; what is the same is the table's to say
(`draftrt.tolerances`), and near ties are those of `draftrt.compare.ties`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftrt.backends import ONNXRUNTIME
from draftrt.compare.arrays import compare_ids, compare_values
from draftrt.compare.ties import CHOSEN_FROM, candidates_differ, draft_ids_differ, next_ids_differ
from draftrt.errors import ExportError
from draftrt.export.weights.overflow import is_finite, overflow_in
from draftrt.onnx_session import load_onnxruntime, open_session
from draftrt.signature import CONFIDENCE, DRAFT_IDS, NEXT_IDS, PAST, PRESENT
from draftrt.spec import Precision
from draftrt.tolerances import EXACT, limit_of

GROWING = tuple(PRESENT + part for part in ("key_", "value_"))
Arrays = dict[str, NDArray[Any]]
Sizes = tuple[int, int]  # context length, new rows

# What a draft is conditioned on another one for: behind a tie they say nothing.
BEHIND_A_TIE = (CONFIDENCE, *CHOSEN_FROM, "vocabulary_ids")


def compare_rounds(
    path: Path,
    module: nn.Module,
    names: Iterable[str],
    caches: Arrays,
    rounds: Iterable[tuple[Sizes, Arrays]],
    precision: Precision,
    block: int = 0,
) -> Iterator[tuple[Sizes, float]]:
    """Compute rounds of a whole graph and of its module, both with the caches that the graph wrote.

    Args:
        path: ONNX file.
        module: its module.
        names: of the module's outputs.
        caches: those of the first round, by the names of the inputs.
        rounds: sizes and feeds of each.
        precision: of the computation.
        block: rows that a round writes behind the new ones.

    Yields:
        The sizes of each round, and its largest difference relative to an output's largest value.

    Raises:
        ExportError: an output differs beyond its limit, or float16 overflows.
    """
    session, names = open_bare(path), tuple(names)
    for sizes, feeds in rounds:
        fed = feeds | caches
        want = run_module(module, fed, names)
        check_finite(module, fed, want, precision, f"{path.name}, context {sizes[0]}")
        got = run_session(session, fed)
        used = sum(sizes) + block
        kept = [{n: rows_in_use(n, a, used) for n, a in side.items()} for side in (want, got)]
        yield sizes, compare_outputs(path.name, kept[0], kept[1], sizes, precision)
        caches = {PAST + n.removeprefix(PRESENT): a for n, a in got.items() if is_cache(n)}


def compare_outputs(
    name: str,
    want: Mapping[str, NDArray[Any]],
    got: Mapping[str, NDArray[Any]],
    sizes: Sizes,
    precision: Precision,
) -> float:
    """Compare one round of a graph with that of its module.

    Args:
        name: of the graph, for the message.
        want: what the module returned, of caches the rows in use.
        got: what the graph returned, of caches the rows in use.
        sizes: context length and new rows.
        precision: of the computation.

    Returns:
        The largest difference of a value, relative to one more than the largest of its output.

    Raises:
        ExportError: an output differs beyond its limit.
    """
    worst, wrong = 0.0, None
    is_tied = DRAFT_IDS in got and not np.array_equal(want[DRAFT_IDS], got[DRAFT_IDS])
    for output in (one for one in got if one in want and one not in (DRAFT_IDS, NEXT_IDS)):
        if output == "candidate_ids" or (is_tied and output in BEHIND_A_TIE):
            continue
        if output == "candidate_scores":
            wrong = wrong or candidates_differ(want, got, precision)
            continue
        if output == "vocabulary_ids":
            found = compare_ids(output, want[output], got[output], EXACT)
        else:
            kind = "hidden" if output.endswith(".output") else output  # the result of a layer
            limit = limit_of(ONNXRUNTIME, precision, kind)
            found = compare_values(output, want[output], got[output], limit)
            worst = max(worst, found.worst / found.allowed * limit.rtol)
        if not found:
            wrong = wrong or f"{output} {found.problem}"
    if wrong is None and DRAFT_IDS in got:
        wrong = draft_ids_differ(want, got, precision)
    if wrong is None and NEXT_IDS in got:
        wrong = next_ids_differ(got)
    if wrong is not None:
        raise ExportError(
            f"{name}: ONNX Runtime and the PyTorch module differ at context length {sizes[0]} with "
            f"{sizes[1]} new rows: {wrong}",
            hint="the exported graph is wrong; this is a defect of draftrt, please report it",
        )
    return worst


def open_bare(path: Path, weights: Path | None = None) -> Any:
    """Open a graph on ONNX Runtime's CPU provider; weights stay mapped, nothing is packed.

    Args:
        path: ONNX file.
        weights: folder of its external data; None for that of the file.
    """
    runtime = load_onnxruntime()
    return open_session(
        path,
        weights,
        settings={"session.disable_prepacking": "1"},
        log_severity_level=3,
        # An arena keeps what it once grew to: every weight widened, one after the other.
        enable_cpu_mem_arena=False,
        enable_mem_pattern=False,
        execution_order=runtime.ExecutionOrder.PRIORITY_BASED,  # widen a weight when it is needed
        # Folding would keep a float32 copy of every 16-bit weight: the CPU has no such products.
        graph_optimization_level=runtime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    )


def call_module(
    module: nn.Module, feeds: Mapping[str, NDArray[Any] | Tensor], names: Iterable[str]
) -> dict[str, Tensor]:
    """Run a module once, its inputs in order, caches behind the others; name what it returns."""
    inputs = (
        one if isinstance(one, Tensor) else torch.from_numpy(np.ascontiguousarray(one))
        for one in feeds.values()
    )
    with torch.no_grad():
        return dict(zip(names, module(*inputs), strict=True))


def run_module(module: nn.Module, feeds: Arrays, names: Iterable[str]) -> Arrays:
    """Run a module once as `call_module`, for arrays."""
    return {name: to_numpy(one) for name, one in call_module(module, feeds, names).items()}


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16, which NumPy lacks, is widened to float32."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def run_session(session: Any, feeds: Arrays) -> Arrays:
    """Run a graph once; return its outputs by name."""
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_finite(
    module: nn.Module,
    feeds: Mapping[str, NDArray[Any] | Tensor],
    found: Mapping[str, NDArray[Any]],
    precision: Precision,
    where: str,
) -> None:
    """Refuse a model that leaves the range of float16.

    Args:
        module: it computed what was found.
        feeds: its inputs.
        found: what it returned.
        precision: of the computation.
        where: for the message.

    Raises:
        ExportError: names the tensor.
    """
    if precision is not Precision.FP16 or is_finite(found.values()):
        return
    error = overflow_in(module, lambda: call_module(module, feeds, found), where)
    if error is not None:
        raise error


def is_cache(name: str) -> bool:
    """Whether an output is a cache."""
    return name.startswith(PRESENT)


def rows_in_use(name: str, array: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return the cache rows that hold something; other outputs, states too, as they are."""
    return array[:, :, :rows] if name.startswith(GROWING) else array
