"""The arithmetic of quantised weights against a slow version of each scheme, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from draftrt.errors import CheckpointError, UnsupportedError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import warn_of_quantised_target
from draftrt.export.weights.quantize import DIVISORS, dequantize, quantize_rows
from draftrt.quantization import Scheme, parse_quantization

Floats = NDArray[np.float64]


def rows_of(count: int, width: int, seed: int = 0) -> Floats:
    """Weights with outliers, a channel of zeros and one of tiny values."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, width)) * rng.uniform(0.01, 2, (count, 1))
    rows[0, 5] = 9.0
    rows[1] = 0.0
    return rows.astype(np.float32).astype(np.float64)


def stored(scale: float, kind: type[np.floating]) -> float:
    """The scale as a file holds it; one where nothing is left of it."""
    return float(kind(scale)) or 1.0


def slow_int4(block: Floats, kind: type[np.floating]) -> tuple[float, list[int]]:
    """Scale and codes of one block: every divisor is tried, the first of the best is kept."""
    best: tuple[float, float, list[int]] | None = None
    for divisor in DIVISORS:
        scale = stored(float(np.float32(np.abs(block).max()) / np.float32(divisor)), kind)
        codes = [min(7, max(-8, round(float(np.float32(w) / np.float32(scale))))) for w in block]
        error = math.fsum((code * scale - w) ** 2 for code, w in zip(codes, block, strict=True))
        if best is None or error < best[0] * (1 - 1e-5):
            best = error, scale, codes
    assert best is not None
    return best[1], best[2]


@pytest.mark.parametrize("width", [64, 48], ids=["blocks of 32", "blocks of 16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int4_keeps_the_best_scale_tried_for_each_block(width: int, dtype: torch.dtype) -> None:
    rows = rows_of(6, width)
    codes, scales = quantize_rows("w", torch.from_numpy(rows), Scheme.INT4, dtype)
    block = width // scales.shape[1]
    assert (codes.dtype, scales.dtype, block) == (torch.int8, dtype, 32 if width == 64 else 16)
    kind = np.float16 if dtype is torch.float16 else np.float32
    for row, at in np.ndindex(*scales.shape):
        scale, expected = slow_int4(rows[row, at * block : (at + 1) * block], kind)
        assert float(scales[row, at]) == pytest.approx(scale, rel=1e-6)
        assert codes[row, at * block : (at + 1) * block].tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int8_spreads_each_channel_over_127_steps(dtype: torch.dtype) -> None:
    rows = rows_of(5, 40)
    codes, scales = quantize_rows("w", torch.from_numpy(rows), Scheme.INT8, dtype)
    kind = np.float16 if dtype is torch.float16 else np.float32
    for row in range(5):
        scale = stored(float(np.float32(np.abs(rows[row]).max()) / np.float32(127)), kind)
        assert float(scales[row]) == scale
        expected = [max(-127, min(127, round(float(np.float32(w / scale))))) for w in rows[row]]
        assert codes[row].tolist() == expected


def test_fp8_takes_the_nearest_of_its_numbers() -> None:
    rows = rows_of(4, 40)
    codes, scales = quantize_rows("w", torch.from_numpy(rows), Scheme.FP8, torch.float32)
    assert codes.dtype == torch.float8_e4m3fn
    exponents = [(mantissa, 2.0**power) for power in range(-6, 9) for mantissa in range(8)]
    numbers = [unit * (1 + m / 8) for m, unit in exponents if unit * (1 + m / 8) <= 448]
    numbers += [m / 8 * 2.0**-6 for m in range(8)]
    numbers += [-number for number in numbers]
    found = codes.float().numpy()
    for row, column in np.ndindex(*rows.shape):
        wanted = rows[row, column] / float(scales[row])
        gap = min(abs(number - wanted) for number in numbers)
        assert found[row, column] in numbers
        assert abs(found[row, column] - wanted) == pytest.approx(gap, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_channel_of_zeros_stays_zero(scheme: Scheme) -> None:
    rows = torch.from_numpy(rows_of(4, 64))
    codes, scales = quantize_rows("w", rows, scheme, torch.float16)
    assert not dequantize(codes, scales)[1].any()


@pytest.mark.parametrize(("scheme", "most"), [(Scheme.INT8, 0.01), (Scheme.INT4, 0.11)])
def test_what_comes_back_is_near_what_went_in(scheme: Scheme, most: float) -> None:
    rows = torch.from_numpy(np.random.default_rng(3).standard_normal((64, 256)))
    back = dequantize(*quantize_rows("w", rows, scheme, torch.float32))
    assert float((back - rows).norm() / rows.norm()) < most


def test_rows_are_quantised_apart_from_each_other() -> None:
    rows = torch.from_numpy(rows_of(600, 512))
    whole = quantize_rows("w", rows, Scheme.INT4, torch.float32)
    part = quantize_rows("w", rows[300:310], Scheme.INT4, torch.float32)
    assert all(torch.equal(a[300:310], b) for a, b in zip(whole, part, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_weight_that_is_no_number_is_refused(bad: float, scheme: Scheme) -> None:
    rows = torch.ones(3, 32)
    rows[2, 7] = bad
    with pytest.raises(CheckpointError, match=r"^q: a weight is not finite") as caught:
        quantize_rows("q", rows, scheme, torch.float32)
    assert "the checkpoint is damaged" in caught.value.hint


def test_a_scale_that_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(CheckpointError, match="too large for a scale in torch"):
        quantize_rows("q", torch.full((1, 32), 1e7), Scheme.INT8, torch.float16)


def test_int4_over_a_width_that_no_block_divides_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="multiple of 16, got 40") as caught:
        quantize_rows("q", torch.ones(2, 40), Scheme.INT4, torch.float32)
    assert "use int8" in caught.value.hint


@pytest.mark.parametrize(
    ("wishes", "says", "way_out"),
    [
        (["int4"], "(linear int4, head int4)", "--quantize draft:linear=int4"),
        (["embedding=int8"], "(embedding int8)", "--quantize draft:embedding=int8"),
        (["target:int8"], "(linear int8, head int8)", ""),
    ],
)
def test_a_target_in_fewer_bits_is_told_with_the_way_to_quantise_the_drafter_alone(
    wishes: list[str], says: str, way_out: str
) -> None:
    told: list[str] = []
    warn_of_quantised_target(ExportOptions(quantization=parse_quantization(wishes)), told.append)
    (line,) = told
    assert "its text is that of the quantised target" in line
    assert says in line
    assert ("the drafter alone" in line) == bool(way_out)
    assert way_out in line


@pytest.mark.parametrize("wishes", [[], ["draft:int4"], ["draft:head=int8"]])
def test_a_drafter_in_fewer_bits_is_nothing_to_warn_of(wishes: list[str]) -> None:
    told: list[str] = []
    warn_of_quantised_target(ExportOptions(quantization=parse_quantization(wishes)), told.append)
    assert told == []
