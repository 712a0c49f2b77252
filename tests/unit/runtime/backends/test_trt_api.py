"""Every name that TensorRT sessions use exists on the real modules; no GPU is needed for that."""

from __future__ import annotations

import ast
import inspect
import mmap
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from draftrt.dtypes import TABLE
from draftrt.errors import BackendError
from draftrt.runtime.backends import cuda, trt, trt_engine
from draftrt.runtime.backends.cuda import Cuda, host_array
from draftrt.runtime.backends.trt_engine import Engine, make_log
from tests.unit.runtime.backends.fake_trt import signature

MODULES = ("tensorrt_rtx", "tensorrt")
# What holds an object of which class, in the order that the longest text comes first.
HOLDERS = {
    "self._engine": "ICudaEngine",
    "engine": "ICudaEngine",
    "self._context": "IExecutionContext",
    "self._runtime": "Runtime",
    "config": "IRuntimeConfig",
    "self._jit": "IRuntimeCache",
}
ASKED_FOR = {"create_runtime_config", "create_runtime_cache", "cuda_graph_strategy"}
# TensorRT 10.3 has none of these.
OPTIONAL = {"get_aliased_input_tensor", "set_runtime_cache", *ASKED_FOR}


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = pytest.importorskip(request.param)
    return found


def used_names(source: ModuleType) -> dict[str, set[str]]:
    """Class name to the attributes that a source file takes from objects of it."""
    used: dict[str, set[str]] = {}
    tree = ast.parse(inspect.getsource(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (kind := HOLDERS.get(ast.unparse(node.value))):
            used.setdefault(kind, set()).add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._call":
            assert isinstance(node.args[0], ast.Constant)
            used.setdefault("IExecutionContext", set()).add(str(node.args[0].value))
    return used


def test_every_method_of_an_object_exists(module: ModuleType) -> None:
    in_engine, in_session = used_names(trt_engine), used_names(trt)
    in_session.pop("ICudaEngine")  # there `self._engine` is our own Engine
    for used in (in_engine, in_session):
        for kind, names in used.items():
            if not hasattr(module, kind):
                assert kind in ("IRuntimeConfig", "IRuntimeCache")  # TensorRT 10.3 has neither
                continue
            missing = {name for name in names if not hasattr(getattr(module, kind), name)}
            is_rtx = module.__name__ == "tensorrt_rtx"
            assert missing <= (set() if is_rtx else OPTIONAL), kind
    assert {"set_tensor_address", "execute_async_v3", "set_input_shape"} <= in_session[
        "IExecutionContext"
    ]
    assert len(in_engine["ICudaEngine"]) >= 9


def test_what_is_optional_is_asked_for_before_it_is_used() -> None:
    text = inspect.getsource(trt_engine)
    for name in {*ASKED_FOR, "get_aliased_input_tensor"}:
        assert re.search(rf'hasattr\([\w.]+, "{name}"\)', text), name


def test_every_enumerator_exists(module: ModuleType) -> None:
    for name in filter(None, (one.tensorrt for one in TABLE)):
        assert hasattr(module.DataType, name)
    assert module.TensorIOMode.INPUT != module.TensorIOMode.OUTPUT
    assert module.TensorLocation.DEVICE != module.TensorLocation.HOST
    assert module.ILogger.ERROR != module.ILogger.WARNING
    assert module.__version__
    if module.__name__ == "tensorrt_rtx":
        assert module.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE != module.CudaGraphStrategy.DISABLED


def test_the_real_log_keeps_errors_and_passes_warnings_on(
    module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_log(module)
    assert isinstance(log, module.ILogger)
    log.log(module.ILogger.WARNING, "mind the gap")
    log.log(module.ILogger.INFO, "all is well")
    for number in range(9):
        log.log(module.ILogger.ERROR, f"error {number}")
    assert "mind the gap" in caplog.text
    assert "all is well" not in caplog.text
    assert list(log.errors) == [f"error {number}" for number in range(5, 9)]


def test_the_real_runtime_takes_a_mapped_file_and_its_refusal_is_passed_on(
    module: ModuleType, tmp_path: Path
) -> None:
    plan = tmp_path / "draft.plan"
    plan.write_bytes(b"no plan at all" * 100)
    with plan.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert module.Runtime(make_log(module)).deserialize_cuda_engine(view) is None
    with pytest.raises(BackendError, match=r"does not load it: .*erialization"):
        Engine(module, plan, signature())


def test_every_cuda_function_and_constant_exists() -> None:
    api = pytest.importorskip("cuda.bindings.runtime")
    text = inspect.getsource(cuda)
    names = set(re.findall(r'_(?:call|ask)\((?:self\._api, |api, )?"(cuda\w+)"', text))
    names |= set(re.findall(r"api\.(cuda\w+)", text))
    assert {"cudaMalloc", "cudaStreamEndCapture", "cudaGetErrorString"} <= names
    assert not {name for name in names if not hasattr(api, name)}
    enumerators = set(re.findall(r"\.(cudaDevAttr\w+|cudaMemcpy\w+To\w+|\w+ModeThreadLocal)", text))
    kinds = (api.cudaDeviceAttr, api.cudaMemcpyKind, api.cudaStreamCaptureMode)
    assert len(enumerators) == 5
    assert all(any(hasattr(kind, name) for kind in kinds) for name in enumerators)


@pytest.mark.needs("cuda", "no GPU")
def test_a_machine_without_a_gpu_is_told_so() -> None:
    with pytest.raises(BackendError, match="no usable NVIDIA GPU: cudaGetDeviceCount") as refusal:
        Cuda()
    assert "onnxruntime" in refusal.value.hint


@pytest.mark.parametrize("extra", ["rtx", "trt"])
@pytest.mark.parametrize("name", ["cuda", "cuda.bindings.runtime"])
def test_missing_bindings_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match="needs the package cuda-bindings, which") as refusal:
        Cuda(extra=extra)
    assert refusal.value.hint == f"pip install 'draftrt[{extra}]'"


def test_host_memory_is_seen_as_an_array_that_can_be_written() -> None:
    held = np.zeros(12, np.float32)
    view = host_array(held.ctypes.data, (3, 4), "float32")
    view[1, 2] = 5
    assert held[6] == 5
    assert host_array(held.ctypes.data, (1, 0, 4), "float32").shape == (1, 0, 4)
