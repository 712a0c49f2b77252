"""The bookkeeping of TensorRT sessions: buffers, shapes, recordings, what is kept and refused.

On a fake module in host memory; that the calls exist is `test_trt_api`, and that they compute the
right thing is tests/gpu.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.errors import BackendError, BundleError, FeedError
from draftrt.runtime.backends.trt import TrtSession
from tests.unit.runtime.backends.fake_trt import (
    CACHE,
    FakeCuda,
    FakeTrt,
    plan_file,
    reference,
    signature,
)

ROUNDS = [(0, 3), (3, 1), (4, 2), (5, 1), (6, 2), (7, 1), (8, 2), (9, 1), (2, 1)]


def open_session(
    folder: Path, cuda: FakeCuda, jit_cache: Path | None = None, **module: Any
) -> tuple[TrtSession, Any]:
    fake: Any = FakeTrt(cuda, **module)
    session = TrtSession(fake, plan_file(folder), signature(), cuda, jit_cache=jit_cache)
    return session, fake


def feeds(length: int, rows: int, asked: list[int] | None = None) -> dict[str, NDArray[Any]]:
    values = np.random.default_rng([length, rows]).random((1, rows, 3), np.float32)
    return {
        "features": values,
        "length": np.array([length], np.int64),
        "asked": np.array([*range(rows)] if asked is None else asked, np.int64),
    }


@pytest.mark.parametrize("can_record", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_rounds_are_those_of_one_growing_cache(
    in_place: bool, can_record: bool, tmp_path: Path
) -> None:
    session, fake = open_session(tmp_path, FakeCuda(can_record=can_record), in_place=in_place)
    assert session.is_in_place is in_place
    got = [session.run(feeds(*one)) for one in ROUNDS * 3]
    want = reference([(length, feeds(length, rows)["features"]) for length, rows in ROUNDS * 3])
    assert [float(out["total"][0]) for out in got] == pytest.approx(want, rel=1e-6)
    for one, out in zip(ROUNDS * 3, got, strict=True):
        assert np.array_equal(out["echo"], feeds(*one)["features"])
        assert set(out) == {"total", "echo"}
    assert fake.context.num_runs == len(got)


def test_in_place_a_cache_is_one_buffer_bound_twice(tmp_path: Path) -> None:
    session, fake = open_session(tmp_path, FakeCuda())
    seen = set()
    for one in ROUNDS:
        session.run(feeds(*one))
        seen.add(session.cache_address("past"))
        assert fake.context.addresses["past"] == fake.context.addresses["present"]
    assert seen == {fake.context.addresses["past"]}


def test_what_cannot_be_in_place_reads_what_it_wrote_last(tmp_path: Path) -> None:
    session, fake = open_session(tmp_path, FakeCuda(), in_place=False)
    for one in ROUNDS[:4]:
        before = session.cache_address("past")
        session.run(feeds(*one))
        bound = fake.context.addresses
        assert bound["past"] == before != bound["present"] == session.cache_address("past")


def test_sizes_that_come_back_are_recorded_and_then_launched(tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda)
    launches, recordings = [], []
    for rows in (2, 2, 2, 1, 2, 1, 1):
        session.run(feeds(0, rows))
        launches.append(cuda.events.count("launch"))
        recordings.append(session.num_recordings)
    assert recordings == [0, 1, 1, 1, 1, 2, 2]
    assert launches == [0, 0, 1, 1, 2, 2, 3]


def test_a_buffer_that_grows_drops_recordings_of_its_old_address(tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda)
    for _ in range(3):
        session.run(feeds(0, 1))
    assert session.num_recordings == 1
    session.run(feeds(0, 5))
    assert session.num_recordings == len(cuda.recordings) == 0
    for rows in (1, 1, 5, 5, 1):
        want = feeds(0, rows)["features"].sum() + 3 * rows
        assert session.run(feeds(0, rows))["total"][0] == pytest.approx(want)


def test_a_backend_that_makes_graphs_itself_is_asked_to_and_not_recorded(tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, fake = open_session(tmp_path, cuda, has_jit=True)
    for _ in range(4):
        session.run(feeds(0, 1))
    assert fake.config.cuda_graph_strategy == "whole"
    assert session.num_recordings == 0
    other, fake = open_session(tmp_path, cuda, has_jit=True, in_place=False)
    assert fake.config.cuda_graph_strategy == "off"
    for _ in range(6):
        other.run(feeds(0, 1))
    assert other.num_recordings == 2  # one for either role of the caches


def test_sizes_beyond_those_of_the_plan_are_refused_before_anything_runs(tmp_path: Path) -> None:
    session, fake = open_session(tmp_path, FakeCuda(), most=4)
    assert session.signature.dimensions["T"].max == 4
    with pytest.raises(FeedError, match=r"features: got shape \[1, 5, 3\].*T \(1..4\)"):
        session.run(feeds(0, 5))
    with pytest.raises(FeedError, match="missing"):
        session.run({})
    assert fake.context.num_runs == 0


def test_two_open_sizes_are_kept_apart(tmp_path: Path) -> None:
    """As of a target, which is asked about some of the rows that it is fed."""
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda, most=5)
    calls = [(5, [4]), (1, [0]), (5, [3, 0, 3]), (2, [1, 0])]
    for rows, asked in [call for call in calls for _ in range(3)]:
        fed = feeds(0, rows, asked)
        out = session.run(fed)
        assert np.array_equal(out["echo"], fed["features"][:, asked])
        assert out["total"][0] == pytest.approx(fed["features"].sum() + 3 * rows)
    assert cuda.events.count("launch") == len(calls)
    assert {name: span.max for name, span in session.signature.dimensions.items()} == {
        "T": 5,
        "S": 5,
    }
    with pytest.raises(FeedError, match=r"asked: got shape \[6\], expected \[S \(1..5\)\]"):
        session.run(feeds(0, 1, [0] * 6))


def test_unwanted_outputs_are_not_fetched(tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda)
    assert set(session.run(feeds(0, 2), unwanted=("echo",))) == {"total"}
    assert cuda.events.count("fetch") == 1


def test_answers_belong_to_the_caller(tmp_path: Path) -> None:
    session, _ = open_session(tmp_path, FakeCuda())
    first = session.run(feeds(0, 2))["echo"]
    kept = first.copy()
    session.run(feeds(1, 2))
    assert np.array_equal(first, kept)


def test_a_failed_call_says_why_and_the_next_one_works(tmp_path: Path) -> None:
    session, fake = open_session(tmp_path, FakeCuda())
    fake.context.fails = True
    fake.log.log(fake.ILogger.ERROR, "out of kernels")
    with pytest.raises(BackendError, match=r"execute_async_v3.*failed: out of kernels"):
        session.run(feeds(0, 2))
    fake.context.fails = False
    assert session.run(feeds(0, 2))["total"][0] == pytest.approx(feeds(0, 2)["features"].sum() + 6)


def test_after_an_interrupted_call_the_stream_is_waited_for_before_buffers_are_used(
    tmp_path: Path,
) -> None:
    cuda = FakeCuda()
    session, fake = open_session(tmp_path, cuda, in_place=False)
    session.run(feeds(0, 2))
    address = session.cache_address("past")
    fake.context.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        session.run(feeds(2, 1))
    fake.context.interrupts = False
    assert session.cache_address("past") == address, "an unfinished call changes no role"
    waited = cuda.events.count("synchronize")
    got = float(session.run(feeds(2, 1))["total"][0])
    assert cuda.events.count("synchronize") == waited + 2
    want = reference([(0, feeds(0, 2)["features"]), (2, feeds(2, 1)["features"])])[1]
    assert got == pytest.approx(want)


@pytest.mark.parametrize("in_place", [True, False])
def test_closing_frees_everything_and_may_be_done_twice(in_place: bool, tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda, in_place=in_place)
    with session:
        for one in ROUNDS * 3:
            session.run(feeds(*one))
        assert session.num_recordings
    session.close()
    assert (cuda.held, cuda.recordings, cuda.stream) == ({}, [], 0)
    with pytest.raises(BackendError, match="session is closed"):
        session.run(feeds(0, 1))


def test_caches_start_empty(tmp_path: Path) -> None:
    cuda = FakeCuda()
    session, _ = open_session(tmp_path, cuda)
    memory = cuda.held[session.cache_address("past")]
    assert bytes(memory) == bytes(4 * int(np.prod(CACHE)))


def test_compiled_kernels_are_kept_beside_the_plan_and_read_back(tmp_path: Path) -> None:
    kept = tmp_path / "draft.jit-sm89"
    session, _ = open_session(tmp_path, FakeCuda(), kept, has_jit=True)
    assert not kept.exists()
    session.run(feeds(0, 2))
    assert kept.read_bytes() == b"jit|(1, 2, 3)"  # at once: the process may be killed
    session.run(feeds(0, 1))
    session.close()
    assert kept.read_bytes() == b"jit|(1, 1, 3)|(1, 2, 3)"
    again, fake = open_session(tmp_path, FakeCuda(), kept, has_jit=True)
    assert len(fake.context.jit.kernels) == 2
    before = kept.stat().st_mtime_ns
    again.run(feeds(0, 2))
    again.close()
    assert kept.stat().st_mtime_ns == before, "rewritten without a new kernel"


def test_kernels_of_another_driver_are_told_and_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "draft.jit-sm89"
    kept.write_bytes(b"other")
    session, _ = open_session(tmp_path, FakeCuda(), kept, has_jit=True)
    session.run(feeds(0, 2))
    assert kept.read_bytes() == b"jit|(1, 2, 3)"
    assert "compiled for another driver or version" in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "gone" / "draft.jit-sm89"
    session, _ = open_session(tmp_path, FakeCuda(), kept, has_jit=True)
    with caplog.at_level(logging.WARNING):
        session.run(feeds(0, 2))
        session.run(feeds(0, 2))
    assert caplog.text.count("compiled kernels are not kept") == 1


def test_a_plan_that_does_not_load_ends_with_its_log(tmp_path: Path) -> None:
    cuda = FakeCuda()
    fake: Any = FakeTrt(cuda)
    with pytest.raises(BackendError, match=r"fake_trt 1.0 does not load it: bad magic tag"):
        TrtSession(fake, plan_file(tmp_path, b"broken"), signature(), cuda)


def test_a_plan_of_another_graph_is_refused(tmp_path: Path) -> None:
    cuda = FakeCuda()
    fake: Any = FakeTrt(cuda)
    table, plan = signature(), plan_file(tmp_path)
    fewer = replace(table, outputs=table.outputs[1:])
    with pytest.raises(BundleError, match=r"outputs are \['echo', 'present', 'total'\]"):
        TrtSession(fake, plan, fewer, cuda)
    other = replace(table, inputs=(replace(table.inputs[0], dtype="float16"), *table.inputs[1:]))
    fake.DataType.HALF = "HALF"
    with pytest.raises(BundleError, match="features is FLOAT, the manifest says float16"):
        TrtSession(fake, plan, other, cuda)


def test_an_output_of_another_shape_than_expected_is_refused(tmp_path: Path) -> None:
    session, fake = open_session(tmp_path, FakeCuda())
    fake.context.get_tensor_shape = lambda name: (1, 9, 3)
    with pytest.raises(BackendError, match=r"gives total the shape \[1, 9, 3\], expected \[1\]"):
        session.run(feeds(0, 2))
    fake.context.infer_shapes = lambda: ["features"]
    with pytest.raises(BackendError, match=r"leaves the shapes of \['features'\] open"):
        session.run(feeds(0, 2))


def test_a_fed_bfloat16_tensor_is_refused(tmp_path: Path) -> None:
    cuda = FakeCuda()
    fake: Any = FakeTrt(cuda)
    table = signature()
    fake.table = replace(
        table, inputs=(replace(table.inputs[0], dtype="bfloat16"), *table.inputs[1:])
    )
    with pytest.raises(BackendError, match="features is bfloat16, for which NumPy has no type"):
        TrtSession(fake, plan_file(tmp_path), fake.table, cuda)
