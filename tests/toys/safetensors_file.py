"""A safetensors file of tensors in any of its element types, written by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, NDArray[Any]]]) -> None:
    """Write tensors by name, each with the file's name of its type and an array of its bits."""
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        places = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": places}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
