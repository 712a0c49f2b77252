"""The calls of `Cuda` on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from draftrt.errors import BackendError
from draftrt.runtime.backends.cuda import Cuda, host_array

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    pytest.importorskip("cuda.bindings.runtime")
    device = Cuda()
    yield device
    device.close()


def test_device_memory_starts_zeroed_and_keeps_what_is_copied(cuda: Cuda) -> None:
    assert cuda.sm >= 50
    assert cuda.name
    device, host = cuda.allocate(4096), cuda.allocate_host(4096)
    view = host_array(host, (1024,), "float32")
    view[:] = 7
    cuda.to_host(host, device, 4096)
    cuda.synchronize()
    assert not view.any()
    view[:] = np.arange(1024)
    cuda.to_device(device, host, 4096)
    cuda.synchronize()
    view[:] = 0
    cuda.to_host(host, device, 4096)
    cuda.synchronize()
    assert np.array_equal(view, np.arange(1024, dtype=np.float32))
    cuda.free(device)
    cuda.free_host(host)


def test_a_recording_runs_when_it_is_launched_and_as_often(cuda: Cuda) -> None:
    device, host = cuda.allocate(16), cuda.allocate_host(16)
    view = host_array(host, (4,), "int32")
    view[:] = [1, 2, 3, 4]
    cuda.begin_capture()
    cuda.to_device(device, host, 16)
    recording = cuda.end_capture()
    assert recording is not None
    for value in (5, 6):
        view[:] = value
        cuda.launch(recording)
        cuda.synchronize()
        view[:] = 0
        cuda.to_host(host, device, 16)
        cuda.synchronize()
        assert view.tolist() == [value] * 4
    cuda.free_recording(recording)


def test_a_failed_call_names_the_function_and_the_reason(cuda: Cuda) -> None:
    with pytest.raises(BackendError, match=r"cudaMalloc failed with status 2: out of memory"):
        cuda.allocate(1 << 60)
    with pytest.raises(BackendError, match=r"got GPU 99, expected one of the \d+"):
        Cuda(99)
