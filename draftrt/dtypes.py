"""Element types: one table of what each is called here, in files and in other packages.

A type goes by its NumPy-style name everywhere; PyTorch has an attribute of that name. ONNX numbers
are those of ``TensorProto.DataType`` in onnx.proto, file names those of the safetensors format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Attributes:
        name: NumPy-style.
        itemsize: bytes an element.
        safetensors: its name in a safetensors header.
        onnx: its number in an ONNX file.
        tensorrt: its name in ``tensorrt.DataType``; empty where no graph has such inputs.
    """

    name: str
    itemsize: int
    safetensors: str
    onnx: int
    tensorrt: str = ""


TABLE = (
    Dtype("float32", 4, "F32", 1, "FLOAT"),
    Dtype("float16", 2, "F16", 10, "HALF"),
    Dtype("bfloat16", 2, "BF16", 16, "BF16"),
    Dtype("int64", 8, "I64", 7, "INT64"),
    Dtype("int32", 4, "I32", 6, "INT32"),
    Dtype("bool", 1, "BOOL", 9, "BOOL"),
    Dtype("float64", 8, "F64", 11),
    Dtype("int16", 2, "I16", 5),
    Dtype("int8", 1, "I8", 3),
    Dtype("uint8", 1, "U8", 2),
    Dtype("float8_e4m3fn", 1, "F8_E4M3", 17),
    Dtype("float8_e5m2", 1, "F8_E5M2", 19),
    Dtype("float8_e8m0fnu", 1, "F8_E8M0", 24),
)
BY_NAME = {one.name: one for one in TABLE}
BY_SAFETENSORS = {one.safetensors: one for one in TABLE}
BY_ONNX = {one.onnx: one for one in TABLE}
FLOATS = ("float32", "float16", "bfloat16")  # what weights are stored in
