"""How far two computations may be apart and still count as the same: one table, with reasons.

Used by every check on the command line and in the tests; docs/accuracy.md says how each number was
found. A difference is judged against ``atol + rtol * m`` with m the largest finite magnitude in the
expected array: rounding errors of a matrix product scale with the largest terms, not with the
element that they happen to hit.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftrt.errors import BackendError
from draftrt.spec import Precision

INT8_KERNELS = "onnxruntime's int8 kernels"  # products of int4 and int8 weights as the runtime runs
CACHE = "cache"  # every past and present K/V
IDS = ("draft_ids", "draft_vocab_ids", "candidates", "candidate_ids", "vocabulary_ids")
VALUES = ("hidden", "base_logits", "logits", "confidence", "candidate_scores", CACHE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one output of one backend may differ by.

    Attributes:
        atol: absolute part.
        rtol: part relative to the largest finite magnitude in the expected array.
        agreement: smallest share of equal ids; 1 demands all.
        reason: why these numbers.
    """

    atol: float = 0.0
    rtol: float = 0.0
    agreement: float = 1.0
    reason: str


_CPU_PRECISIONS = (Precision.FP32, Precision.FP16)
_EXACT = Limit(reason="float32 paths differ by 1e-5; the smallest gaps between logits are 100 x")
_FP32 = Limit(
    atol=2e-5, rtol=2e-5, reason="accumulation order of float32 products over three layers"
)
_FP16_IDS = Limit(
    agreement=0.9, reason="an id may flip where two logits are closer than a float16 rounding"
)
_FP16 = Limit(
    atol=1e-2, rtol=1e-2, reason="each float16 product rounds to 5e-4 and both sides round apart"
)

_INT8_IDS = Limit(
    agreement=0.9, reason="an id may flip where two logits are closer than activations in int8"
)
_INT8 = Limit(
    atol=5e-2,
    rtol=5e-2,
    reason="the kernels round activations to int8 in blocks of 32: 5e-3 a product, 2e-2 at the end",
)
LARGEST_FEATURE = 6e4  # for range reports: hidden states of Qwen3-8B pass 2e4
FP16_AGAINST_FP32 = Limit(
    agreement=0.99, reason="float16 must lose nothing but near ties to the same weights in float32"
)

LIMITS: dict[tuple[str, Precision, str], Limit] = {
    **{("onnxruntime", Precision.FP32, name): _EXACT for name in IDS},
    **{("onnxruntime", Precision.FP32, name): _FP32 for name in VALUES},
    **{("onnxruntime", Precision.FP16, name): _FP16_IDS for name in IDS},
    **{("onnxruntime", Precision.FP16, name): _FP16 for name in VALUES},
    **{(INT8_KERNELS, p, name): _INT8_IDS for p in _CPU_PRECISIONS for name in IDS},
    **{(INT8_KERNELS, p, name): _INT8 for p in _CPU_PRECISIONS for name in VALUES},
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
    kind = CACHE if output.startswith(("past_", "present_")) else output
    if (backend, precision, kind) not in LIMITS:
        pairs = sorted({f"{name} {p.value}" for name, p, _ in LIMITS})
        raise BackendError(
            f"no limits are known for {output} on {backend} in {precision.value}; there are "
            f"limits for {', '.join(pairs)}",
            hint="compare an fp32 or fp16 bundle",
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
