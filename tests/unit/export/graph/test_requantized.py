"""What a checkpoint's weight is compared with where a graph holds it quantised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from draftrt.export.checkpoint.tensors import TensorRef, from_tensor  # noqa: E402
from draftrt.export.weights.quantized import (  # noqa: E402
    QuantizedRef,
    RequantizedRef,
)
from draftrt.quantization import Scheme  # noqa: E402

NAME = "layers.0.mlp.up_proj.weight"


def int4_file(path: Path, codes: list[list[int]]) -> QuantizedRef:
    """Two channels of 16 as a graph stores them: [in, out], two codes a byte, scales of one."""
    flat = [codes[row][column] & 15 for column in range(16) for row in range(2)]
    low, high = flat[0::2], flat[1::2]
    path.write_bytes(bytes(a | b << 4 for a, b in zip(low, high, strict=True)))
    scales = from_tensor(f"{NAME}.scales", torch.ones(1, 2))
    return QuantizedRef(NAME, "float32", (2, 16), path, 0, scheme=Scheme.INT4, scales=scales)


def test_of_two_codes_that_are_as_near_the_graphs_own_is_right(tmp_path: Path) -> None:
    """2.5 lies between 2 and 3: which one is taken may depend on the machine. 4 is a fault."""
    content = torch.zeros(2, 16)
    content[:, 0], content[:, 1] = 7.0, 2.5  # a scale of 7 / 7 errs least
    for code, kept in ((2, 2.0), (3, 3.0), (4, 2.0), (1, 2.0)):
        codes = [[7, 2, *[0] * 14], [7, code, *[0] * 14]]
        stored = int4_file(tmp_path / "data", codes)
        ref = RequantizedRef(
            NAME, "float32", (2, 16), source=from_tensor(NAME, content), stored=stored
        )
        expected = np.zeros((2, 16), np.float32)
        expected[:, 0], expected[0, 1], expected[1, 1] = 7.0, 2.0, kept
        np.testing.assert_array_equal(ref.read().numpy(), expected)
        np.testing.assert_array_equal(stored.read().numpy()[1, :2], [7.0, code])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_is_the_nearest_of_255_values_a_channel(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    content = rng.standard_normal((5, 24)).astype(np.float32)
    scales = torch.tensor(np.abs(content).max(axis=1) / np.float32(127)).to(getattr(torch, dtype))
    stored = QuantizedRef(
        NAME,
        dtype,
        (5, 24),
        tmp_path / "unread",
        0,
        scheme=Scheme.INT8,
        scales=TensorRef("", "", ()),
    )
    source = from_tensor(NAME, torch.from_numpy(content))
    ref = RequantizedRef(NAME, dtype, (5, 24), source=source, stored=stored)
    steps = scales.float().numpy()[:, None]
    expected = np.rint(content / steps).clip(-127, 127) * steps
    np.testing.assert_array_equal(ref.exact().read().numpy(), expected.astype(np.float32))
    rounded = torch.from_numpy(expected.astype(np.float32)).to(getattr(torch, dtype))
    assert torch.equal(ref.read(), rounded)
    assert torch.equal(ref.rows(1, 3).read(), rounded[1:3])
