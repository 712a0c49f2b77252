"""Constants that random checkpoints hide, each against a slow answer on inputs that show it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftrt.export.models import ops
from draftrt.export.models.rope import inverse_frequencies, rows, table_tensors
from draftrt.export.models.weights import Weights, register
from draftrt.export.weights.quantize import quantize_rows
from draftrt.quantization import Scheme
from draftrt.spec import RopeLayout, RopeSpec
from draftrt.validate.doctor.replay import Held
from tests.parity.slow_rope import SlowRope


@pytest.mark.parametrize(
    ("theta", "dim", "original", "extra"),
    [
        (1e4, 16, 4096, {}),  # beta_fast and beta_slow by default, where a ramp's bounds round
        (1e6, 128, 40_960, {}),
        (1e4, 16, 64, {"truncate": False}),
        (1e4, 64, 4096, {"truncate": False}),
        (5.0, 16, 4096, {}),  # the ramp ends beyond the last slot
        (1e4, 64, 4096, {"beta_fast": 48.0, "beta_slow": 2.0, "truncate": False}),
        (1e4, 64, 4096, {"attention_factor": 1.25}),
        (1e4, 64, 4096, {"mscale": 0.7, "mscale_all_dim": 1.2}),
        (1e4, 64, 4096, {"mscale": 0.7}),  # one of the two alone says nothing
        (1e4, 64, 4096, {"beta_fast": 4.0, "beta_slow": 4.0, "truncate": False}),  # a step
        (1e4, 64, 4096, {"factor": 1.0}),
        (1e4, 64, 4096, {"original_max_position_embeddings": None}),  # the declared length then
    ],
)
def test_yarn_is_exact_where_its_bounds_show(
    theta: float, dim: int, original: int, extra: dict[str, float | None]
) -> None:
    facts = {"factor": 4.0, "original_max_position_embeddings": original, **extra}
    spec = RopeSpec(
        layout=RopeLayout.NEOX,
        theta=theta,
        type="yarn",
        rotary_dim=dim,
        head_dim=dim,
        max_position_embeddings=4 * original,
        **facts,  # type: ignore[arg-type]
    )
    parameters = {"rope_type": "yarn", "rope_theta": theta, **facts}
    slow = SlowRope(parameters=parameters, head_dim=dim, max_position=4 * original)
    frequencies, factor = inverse_frequencies(spec)
    want = np.array([slow.frequency(i, original) for i in range(dim // 2)])
    assert np.abs(frequencies / want - 1).max() < 1e-5
    assert factor == pytest.approx(slow.magnitude(), rel=1e-6)


@pytest.mark.parametrize(("length", "is_long"), [(23, False), (24, False), (25, True)])
def test_longrope_takes_the_long_factors_behind_the_original_length(
    length: int, is_long: bool
) -> None:
    spec = RopeSpec(
        layout=RopeLayout.NEOX,
        theta=1e4,
        type="longrope",
        rotary_dim=4,
        head_dim=4,
        max_position_embeddings=48,
        original_max_position_embeddings=24,
        short_factor=(1.0, 2.0),
        long_factor=(3.0, 5.0),
        attention_factor=1.0,
    )
    tables = {name: torch.from_numpy(one) for name, one in table_tensors(spec, 48).items()}
    weights = register(torch.nn.Module(), tables)
    cos, _ = rows(spec, weights, torch.tensor([7]), torch.tensor([length]))
    want = [np.cos(7 / 3), np.cos(0.07 / 5)] if is_long else [np.cos(7), np.cos(0.07 / 2)]
    assert cos[0, 0].tolist() == pytest.approx(want, abs=1e-5)


def test_int4_takes_the_best_of_the_four_published_scales_of_a_block() -> None:
    rows = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)
    codes, scales = quantize_rows("w", torch.from_numpy(rows), Scheme.INT4, torch.float32)
    taken = set()
    for row, code, scale in zip(rows, codes.numpy(), scales.numpy()[:, 0], strict=True):
        errors = {}
        for divisor in (7.0, 7.5, 8.0, 8.5):
            tried = np.abs(row).max() / np.float32(divisor)
            rounded = np.clip(np.round(row / tried), -8, 7)
            errors[divisor] = float(((rounded * tried - row).astype(np.float64) ** 2).sum())
        error = float(((code * scale - row).astype(np.float64) ** 2).sum())
        assert error == pytest.approx(min(errors.values()), rel=1e-5)
        taken.add(min(errors, key=lambda divisor: errors[divisor]))
    assert taken == {7.0, 7.5, 8.0, 8.5}


def test_a_row_far_below_float16s_largest_number_is_brought_down_before_its_product() -> None:
    x = torch.full((1, 2000), 40.0)  # 40 * 2000 is beyond 65504
    weights = Held({"one.weight": torch.ones(1, 2000, dtype=torch.float16)})
    out = ops.linear_to_residual(x, Weights(weights, "one."))
    assert float(out) == pytest.approx(80_000.0, rel=1e-3)
    small = torch.full((1, 8), 2.0**-3)  # what needs no room is left alone
    weight = torch.full((1, 8), 2.0**-20, dtype=torch.float16)
    out = ops.linear_to_residual(small, Weights(Held({"weight": weight})))
    assert float(out) == pytest.approx(8 * 2.0**-23, rel=0.1)
