"""ONNX Runtime is loaded in one place, which keeps it from leaving files with the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_layout import imports_of, product_files

pytest.importorskip("onnxruntime")
RUN = """
import sys
import numpy as np
from onnx import TensorProto, helper
from draftrt.onnx_session import load_onnxruntime
runtime = load_onnxruntime()
value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(session.run(None, {"x": np.ones(1, np.float32)})[0][0])
"""


def test_a_session_leaves_no_file_with_the_user(root: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    env |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "-1.0\n", done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_onnx_runtime_is_imported_in_one_place(root: Path) -> None:
    found = {
        f"{path.parent.name}/{path.name}"
        for path in product_files(root)
        for one in imports_of(path.read_text(encoding="utf-8"))
        if one.module.partition(".")[0] == "onnxruntime"
    }
    assert found == {"draftrt/onnx_session.py"}
