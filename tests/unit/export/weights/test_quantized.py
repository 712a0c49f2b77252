"""Quantised weights in a file: written in slices, read back as what their integers stand for."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef, from_tensor
from draftrt.export.weights import quantized
from draftrt.export.weights.quantize import dequantize, quantize_rows
from draftrt.export.weights.quantized import QuantizedRef, write_quantized
from draftrt.export.weights.tensors import QuantizedUse
from draftrt.quantization import Scheme


def align(stream: BinaryIO) -> int:
    """Pad to 64 bytes."""
    stream.write(b"\0" * (-stream.tell() % 64))
    return stream.tell()


def written(path: Path, use: QuantizedUse) -> QuantizedRef:
    """Write a weight behind something else, with something else behind it."""
    with path.open("wb") as stream:
        stream.write(b"before")
        (codes, size), (scales, _) = write_quantized(stream, use, align)
        stream.write(b"after")
    rows, width = use.tensor.shape
    blocks = width // (32 if width % 32 == 0 else 16)
    shape = (rows,) if use.scheme is not Scheme.INT4 else (blocks, rows)
    dtype = use.tensor.dtype
    assert size == (-(-rows * width // 2) if use.scheme is Scheme.INT4 else rows * width)
    return QuantizedRef(
        "w",
        dtype,
        (rows, width),
        path,
        codes,
        scheme=use.scheme,
        scales=TensorRef("s", dtype, shape, path, scales),
        is_product=use.is_product,
    )


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("rows", [96, 97], ids=["even", "odd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_in_slices_is_read_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    rows: int,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(quantized, "SLICE_ELEMENTS", 80 * 10)
    weight = torch.randn(rows, 80)
    tensor = GraphTensor(
        "w", (rows, 80), str(dtype).removeprefix("torch."), from_tensor("w", weight)
    )
    ref = written(tmp_path / "data", QuantizedUse("w", tensor, scheme, is_product=True))
    exact = dequantize(*quantize_rows("w", weight, scheme, dtype))
    assert torch.equal(ref.exact().read(), exact)
    assert torch.equal(ref.read(), exact.to(dtype))
    for start, stop in ((0, 4), (3, 9), (3, 8), (rows - 5, rows)):
        assert torch.equal(ref.rows(start, stop).read(), exact.to(dtype)[start:stop])
    chosen = [0, 3, 40, 41, rows - 1]
    assert torch.equal(ref.exact_channels(chosen), exact[chosen])
    for row in chosen:
        assert torch.equal(ref.exact_rows(row, row + 1)[0], exact[row])


def test_a_table_stays_in_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "SLICE_ELEMENTS", 300)
    weight = torch.randn(50, 24)
    tensor = GraphTensor("w", (50, 24), "float32", from_tensor("w", weight))
    ref = written(tmp_path / "data", QuantizedUse("w", tensor, Scheme.INT8, is_product=False))
    codes, scales = quantize_rows("w", weight, Scheme.INT8, torch.float32)
    raw = np.fromfile(tmp_path / "data", np.int8)[ref.offset : ref.offset + 50 * 24]
    assert raw.reshape(50, 24).tolist() == codes.tolist()
    assert torch.equal(ref.read(), dequantize(codes, scales))
    assert torch.equal(ref.exact_rows(33, 34)[0], dequantize(codes, scales)[33])
    assert torch.equal(ref.rows(40, 43).read(), dequantize(codes, scales)[40:43])


def test_int4_codes_lie_input_by_input_two_to_a_byte(tmp_path: Path) -> None:
    weight = torch.randn(6, 32)
    tensor = GraphTensor("w", (6, 32), "float32", from_tensor("w", weight))
    ref = written(tmp_path / "data", QuantizedUse("w", tensor, Scheme.INT4, is_product=True))
    codes, _ = quantize_rows("w", weight, Scheme.INT4, torch.float32)
    raw = (tmp_path / "data").read_bytes()[ref.offset : ref.offset + 96]
    for column in range(32):
        for pair in range(3):
            low, high = (int(codes[2 * pair + half, column]) & 15 for half in (0, 1))
            assert raw[column * 3 + pair] == low | high << 4
