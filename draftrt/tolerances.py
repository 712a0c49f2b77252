"""How far two computations may be apart and still count as the same: one table, with reasons.

Used by every check on the command line and in the tests; docs/accuracy.md says how each number was
found. A difference is judged against ``atol + rtol * m`` with m the largest finite magnitude in the
expected array: rounding errors of a matrix product scale with the largest terms, not with the
element that they happen to hit. Beside it stands what a decoder notices: choices, distributions,
directions (`draftrt.compare.measures`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import ONNXRUNTIME, PLANNED
from draftrt.errors import BackendError
from draftrt.signature import CONFIDENCE, DRAFT_IDS, FEATURES, PAST, PRESENT
from draftrt.spec import Precision

CACHE = "cache"  # every past and present K/V
IDS = (DRAFT_IDS, "draft_vocab_ids", "candidates", "candidate_ids", "vocabulary_ids")
LOGITS = ("base_logits", "logits")
VALUES = ("hidden", FEATURES, *LOGITS, CONFIDENCE, "candidate_scores", CACHE)
INT8_KERNELS = "onnxruntime's int8 kernels"  # products of int4 and int8 weights as the runtime runs
RECORD = "record"  # a graph against float32 answers of the unrounded checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one output of one backend may differ by.

    Attributes:
        atol: absolute part.
        rtol: part relative to the largest finite magnitude in the expected array.
        agreement: smallest share of equal ids, or of rows whose largest logit is the same one; 1
            demands all.
        overlap: smallest mean share of a row's ten largest logits that are among the other's ten.
        divergence: largest KL divergence of a row of logits, in nats.
        cosine: smallest cosine of a row.
        norm: largest difference of a row's norm, relative to the expected norm.
        reason: why these numbers.
    """

    atol: float = 0.0
    rtol: float = 0.0
    agreement: float = 1.0
    overlap: float = 0.0
    divergence: float = float("inf")
    cosine: float = -1.0
    norm: float = float("inf")
    reason: str

    def allowed(self, want: NDArray[Any]) -> float:
        """Return what an element may be off, by the largest finite magnitude of an array."""
        finite = np.abs(want[np.isfinite(want)])
        return self.atol + self.rtol * float(finite.max(initial=0.0))


Entries = dict[tuple[str, Precision, str], Limit]


def entries(
    backends: Sequence[str], precision: Precision, *, ids: Limit, logits: Limit, values: Limit
) -> Entries:
    """Return the entries of some backends in one precision.

    Args:
        backends: what runs the graph.
        precision: element type of its weights and caches.
        ids: limit of every output of `IDS`.
        logits: limit of every output of `LOGITS`.
        values: limit of the other `VALUES`.
    """
    found = dict.fromkeys(IDS, ids) | dict.fromkeys(VALUES, values)
    found |= dict.fromkeys(LOGITS, logits)
    return {(backend, precision, name): one for backend in backends for name, one in found.items()}


EXACT = Limit(reason="float32 paths differ by 1e-5; the smallest gaps between logits are 100 x")
_FP32 = Limit(
    atol=2e-5,
    rtol=2e-5,
    cosine=1 - 1e-8,
    norm=3e-5,
    reason="accumulation order of float32 products over three layers",
)
_FP32_LOGITS = Limit(
    atol=2e-5,
    rtol=2e-5,
    overlap=0.99,
    divergence=1e-7,
    cosine=1 - 1e-8,
    norm=3e-5,
    reason="as the other float32 values; only the tenth and eleventh logit may come so close as to "
    "change places",
)
_FP16_IDS = Limit(
    agreement=0.9, reason="an id may flip where two logits are closer than a float16 rounding"
)
_FP16 = Limit(
    atol=4e-2,
    rtol=4e-2,
    cosine=0.998,
    norm=1e-2,
    reason="each float16 product rounds to 5e-4 and both sides round apart; where attention weighs "
    "two rows alike, or through dynamic convolutions, 2e-2 of the largest value was seen",
)
_FP16_LOGITS = Limit(
    atol=4e-2,
    rtol=4e-2,
    agreement=0.9,
    overlap=0.97,
    divergence=5e-3,
    cosine=0.998,
    norm=2e-2,
    reason="a logit moves by a few float16 roundings; a distribution moves by their square",
)
_TWIN_IDS = Limit(
    reason="no CPU kernels: the float32 twin of the bf16 graph, with its rounded weights, against "
    "the module with the same weights; float32 limits"
)
_BF16_IDS = Limit(
    agreement=0.75, reason="an id may flip where two logits are closer than a bfloat16 rounding"
)
_BF16 = Limit(
    atol=8e-2,
    rtol=8e-2,
    cosine=0.998,
    norm=5e-2,
    reason="each bfloat16 product rounds to 4e-3, eight times a float16's, and both sides round "
    "apart",
)
_BF16_LOGITS = Limit(
    atol=8e-2,
    rtol=8e-2,
    agreement=0.75,
    overlap=0.8,
    divergence=5e-2,
    cosine=0.998,
    norm=5e-2,
    reason="as the other bfloat16 values; distributions move by the square of it",
)
_GPU = "plans are built without TF32, so only the order of accumulation differs; not yet measured"
_GPU_IDS = Limit(reason=_GPU)
_GPU_FP32 = Limit(atol=1e-3, rtol=1e-3, cosine=1 - 1e-6, norm=1e-3, reason=_GPU)
_GPU_LOGITS = Limit(
    atol=1e-3,
    rtol=1e-3,
    overlap=0.99,
    divergence=1e-5,
    cosine=1 - 1e-6,
    norm=1e-3,
    reason=_GPU,
)
_ROUNDED = "weights rounded to 16 bits against the unrounded checkpoint: the loss of the precision"
_FP16_RECORD = Limit(
    agreement=0.9,
    overlap=0.9,
    divergence=1e-2,
    cosine=0.999,
    norm=2e-2,
    atol=2e-2,
    reason=_ROUNDED,
)
_BF16_RECORD = Limit(
    agreement=0.8,
    overlap=0.9,
    divergence=0.1,
    cosine=0.98,
    norm=5e-2,
    atol=5e-2,
    reason=_ROUNDED,
)
_INT8_IDS = Limit(
    agreement=0.9, reason="an id may flip where two logits are closer than activations in int8"
)
_INT8 = Limit(
    atol=5e-2,
    rtol=5e-2,
    cosine=0.99,
    norm=5e-2,
    reason="the kernels round activations to int8 in blocks of 32: 5e-3 a product, 2e-2 at the end",
)
_INT8_LOGITS = Limit(
    atol=5e-2,
    rtol=5e-2,
    agreement=0.9,
    overlap=0.9,
    divergence=5e-2,
    cosine=0.99,
    norm=5e-2,
    reason="as the other values of these kernels",
)
LARGEST_FEATURE = 6e4  # for range reports: hidden states of Qwen3-8B pass 2e4
FP16_AGAINST_FP32 = Limit(
    agreement=0.99, reason="float16 must lose nothing but near ties to the same weights in float32"
)
LIMITS: Entries = {
    **entries([ONNXRUNTIME], Precision.FP32, ids=EXACT, logits=_FP32_LOGITS, values=_FP32),
    **entries([ONNXRUNTIME], Precision.FP16, ids=_FP16_IDS, logits=_FP16_LOGITS, values=_FP16),
    **entries([ONNXRUNTIME], Precision.BF16, ids=_TWIN_IDS, logits=_FP32_LOGITS, values=_FP32),
    **{
        key: limit
        for precision in (Precision.FP32, Precision.FP16)
        for key, limit in entries(
            [INT8_KERNELS], precision, ids=_INT8_IDS, logits=_INT8_LOGITS, values=_INT8
        ).items()
    },
    **entries(PLANNED, Precision.FP32, ids=_GPU_IDS, logits=_GPU_LOGITS, values=_GPU_FP32),
    **entries(PLANNED, Precision.FP16, ids=_FP16_IDS, logits=_FP16_LOGITS, values=_FP16),
    **entries(PLANNED, Precision.BF16, ids=_BF16_IDS, logits=_BF16_LOGITS, values=_BF16),
    **entries([RECORD], Precision.FP16, ids=_FP16_RECORD, logits=_FP16_RECORD, values=_FP16_RECORD),
    **entries([RECORD], Precision.BF16, ids=_BF16_RECORD, logits=_BF16_RECORD, values=_BF16_RECORD),
}
GOLDEN_ATOL = 1e-4
GOLDEN_ATOL_OF: dict[str, tuple[float, str]] = {
    "zlab-dflash2": (
        3e-4,
        "activations grow through its dynamic convolutions; correct float32 paths agree to 1e-4",
    ),
}


def limit_of(backend: str, precision: Precision, output: str) -> Limit:
    """Return the limit of an output; caches go by `CACHE`.

    Raises:
        BackendError: the table has no such pair of backend and precision.
    """
    kind = CACHE if output.startswith((PAST, PRESENT)) else output
    if (backend, precision, kind) not in LIMITS:
        pairs = sorted({f"{name} {p.value}" for name, p, _ in LIMITS})
        raise BackendError(
            f"no limits are known for {output} on {backend} in {precision.value}; there are "
            f"limits for {', '.join(pairs)}",
            hint="draftrt/tolerances.py is the table",
        )
    return LIMITS[backend, precision, kind]


def golden_limit(name: str, stated: float | None) -> Limit:
    """Return the limit of a golden case's arrays.

    Args:
        name: the case's name.
        stated: the tolerance that the case itself states, if it does.
    """
    if stated is not None:
        return Limit(atol=stated, reason="stated by the record")
    atol, reason = GOLDEN_ATOL_OF.get(
        name, (GOLDEN_ATOL, "correct float32 paths agree to 2e-5 on the published cases")
    )
    return Limit(atol=atol, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLimits:
    """What the answers of a target may differ by from recorded ones, in float32.

    Attributes:
        logits: absolute difference of a logit.
        features: absolute difference of a feature.
        margin: the largest logit must be the recorded one where it leads the second by more.
    """

    logits: float
    features: float
    margin: float


TARGET_LOGITS, TARGET_FEATURES, TARGET_MARGIN = 2e-4, 2e-3, 1e-3
LEAST_STATED_FEATURES = 5e-4
TIMES_STATED = 10  # what correct float32 paths differ by among themselves, times this


def target_limits(
    stated: tuple[float, float] | None,
    *,
    logits: float | None = None,
    features: float | None = None,
    margin: float | None = None,
) -> TargetLimits:
    """Return the limits of a target case.

    Args:
        stated: largest difference, of logits and of features, that the record states of another
            float32 path of its own maker; None where it states none.
        logits: wished, in place of what follows from the record.
        features: the same.
        margin: the same; by default twice that of the logits, since two logits can move.
    """
    if logits is None:
        logits = TARGET_LOGITS if stated is None else max(TARGET_LOGITS, _times(stated[0]))
    if features is None:
        features = TARGET_FEATURES
        if stated is not None:
            features = max(LEAST_STATED_FEATURES, _times(stated[1]))
    if margin is None:
        margin = max(TARGET_MARGIN, 2 * logits)
    return TargetLimits(logits=logits, features=features, margin=margin)


def _times(stated: float) -> float:
    """Return ten times a difference, to one digit."""
    return float(f"{TIMES_STATED * stated:.0e}")


BEGIN, END = "<!-- limits -->\n", "<!-- /limits -->"
HEAD = ("backend", "precision", "output", "limit", "why")


def as_markdown() -> str:
    """Return a line for each backend, precision and kind of output."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for backends in _alike():
        for precision in Precision:
            kinds = {"ids": IDS[0], "logits": LOGITS[0], "values": "hidden"}
            for kind, name in kinds.items():
                limit = LIMITS.get((backends[0], precision, name))
                if limit is not None:
                    backend = ", ".join(backends)
                    what = (
                        _ids(limit) if kind == "ids" else _values(limit, is_logits=kind != "values")
                    )
                    rows.append((backend, precision.value, kind, what, limit.reason))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def updated(page: str) -> str:
    """Return a page with the table between its two marks replaced.

    Raises:
        ValueError: the page lacks a mark.
    """
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start] + as_markdown() + page[end:]


def _alike() -> list[list[str]]:
    """Return the backends of the table, those with the same limits together."""
    groups: dict[str, list[str]] = {}
    for backend in dict.fromkeys(backend for backend, _, _ in LIMITS):
        own = [(*key[1:], limit) for key, limit in LIMITS.items() if key[0] == backend]
        groups.setdefault(repr(own), []).append(backend)
    return list(groups.values())


def _ids(limit: Limit) -> str:
    return "all equal" if limit.agreement == 1 else f"{limit.agreement:.0%} equal over all rounds"


def _values(limit: Limit, *, is_logits: bool) -> str:
    parts = [f"atol {limit.atol:g}", *([f"rtol {limit.rtol:g}"] if limit.rtol else [])]
    if is_logits:
        parts.append(f"top-1 {limit.agreement:.0%}")
        parts.append(f"top-10 {limit.overlap:.0%}")
        parts.append(f"KL {limit.divergence:g}")
    parts.append(f"cosine 1 − {1 - limit.cosine:.0e}")
    parts.append(f"norm {limit.norm:g}")
    return ", ".join(parts)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
