"""Element types are called here as the packages call them."""

from __future__ import annotations

import json
import struct

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save

from draftrt.dtypes import TABLE, Dtype


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_every_package_agrees_on_what_a_type_is(one: Dtype) -> None:
    assert getattr(torch, one.name).itemsize == one.itemsize
    assert onnx.helper.tensor_dtype_to_np_dtype(one.onnx).itemsize == one.itemsize
    spelled = onnx.TensorProto.DataType.Name(one.onnx).lower().replace("float8", "float8_")
    others = {"float": "float32", "double": "float64", "float8_e8m0": "float8_e8m0fnu"}
    assert others.get(spelled, spelled) == one.name
    if not one.name.startswith(("bfloat", "float8")):
        assert np.dtype(one.name).itemsize == one.itemsize


def test_names_in_files_are_those_that_safetensors_writes() -> None:
    content = save({one.name: torch.zeros(1, dtype=getattr(torch, one.name)) for one in TABLE})
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert {name: entry["dtype"] for name, entry in header.items()} == {
        one.name: one.safetensors for one in TABLE
    }
