"""One table of limits, each with its reason; nothing is compared without an entry."""

from __future__ import annotations

import pytest

from draftrt.backends import BACKENDS
from draftrt.errors import BackendError
from draftrt.spec import Precision
from draftrt.tolerances import IDS, LIMITS, LOGITS, VALUES, golden_limit, limit_of


def test_every_limit_has_a_reason() -> None:
    assert LIMITS
    assert all(limit.reason for limit in LIMITS.values())


def test_float32_ids_must_all_agree() -> None:
    for name in IDS:
        limit = limit_of("onnxruntime", Precision.FP32, name)
        assert (limit.agreement, limit.atol, limit.rtol) == (1.0, 0.0, 0.0)


def test_every_backend_and_precision_has_a_limit_for_every_output() -> None:
    for backend in BACKENDS:
        for precision in Precision:
            for name in (*IDS, *VALUES):
                limit = limit_of(backend, precision, name)
                assert limit.agreement > 0.7
                assert (limit.atol > 0) is (name in VALUES)


def test_what_can_be_measured_of_logits_has_a_limit_everywhere() -> None:
    for (_, _, name), limit in LIMITS.items():
        if name in LOGITS:
            assert 0.75 < limit.overlap < 1
            assert limit.divergence <= 0.2
        if name in ("hidden", *LOGITS):
            assert 0.98 <= limit.cosine < 1
            assert limit.norm <= 0.1


def test_caches_share_one_entry() -> None:
    found = {limit_of("onnxruntime", Precision.FP16, f"present_{x}_3") for x in ("key", "value")}
    assert found == {LIMITS["onnxruntime", Precision.FP16, "cache"]}


@pytest.mark.parametrize(
    ("backend", "precision", "output"),
    [
        ("tensorflow", Precision.FP32, "logits"),
        ("onnxruntime", Precision.FP32, "surprise"),
    ],
)
def test_what_has_no_limit_is_not_compared(backend: str, precision: Precision, output: str) -> None:
    with pytest.raises(BackendError, match=f"no limits are known for {output} on {backend}"):
        limit_of(backend, precision, output)


def test_golden_arrays_have_one_limit_but_for_named_and_self_declared_cases() -> None:
    assert golden_limit("zlab-dflash", None).atol == 1e-4
    assert golden_limit("zlab-dflash2", None).atol == 3e-4
    assert golden_limit("zlab-dflash2-swa-noncausal", None).atol == 1e-4
    assert golden_limit("zlab-dflash2", 5e-5).atol == 5e-5
