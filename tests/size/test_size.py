"""The rows of `make bench-size`: measured in processes of their own, compared with their bars."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftrt.errors import BackendError
from tests.size.rows import Row, _run, export_row, limit, run_export, weights_of
from tests.size.run import as_text
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target


@pytest.mark.slow
def test_an_export_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    ballast = bytearray(600 * 10**6)  # the peak of this process must not be taken for the child's
    ballast[:: 1 << 12] = b"x" * len(ballast[:: 1 << 12])
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.ZLAB_DFLASH))
    target = write_target(tmp_path / "target")
    words = [str(draft), "--target", str(target), "-o", str(tmp_path / "bundle")]
    row = export_row(
        "toy",
        [*words, "--max-context", "40", "--no-target-graph"],
        lambda seconds, peak: [
            limit("peak", peak / 1e9, 0.5, "GB"),
            limit("time", seconds, 0, "s"),
        ],
    )
    assert list(row.bars.values()) == [True, False]
    assert 0.1e9 < row.peak_bytes < 0.5e9
    assert weights_of(tmp_path / "bundle") > 0
    assert as_text(row)[2].startswith("  MISSED  time ")
    with pytest.raises(BackendError, match="exists"):
        run_export(words)


def test_a_program_is_polled_for_its_peak_and_its_failure_told(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    hold = f"""
import pathlib, time
held = bytearray(2 * 10**8)
held[::4096] = bytes(len(held[::4096]))
while not pathlib.Path({str(seen)!r}).exists():
    time.sleep(0.01)
"""

    def look(peak: int) -> None:
        if peak > 0.2e9:
            seen.touch()

    seconds, peak = _run([sys.executable, "-c", hold], look)
    assert seconds > 0
    assert 0.2e9 < peak < 0.4e9
    with pytest.raises(BackendError, match="no reason at all"):
        _run([sys.executable, "-c", "raise SystemExit('no reason at all')"])


def test_a_row_is_told_with_the_load_it_was_measured_under() -> None:
    row = Row(name="x", seconds=2.0, peak_bytes=10**9, bars={"a": True}, note="n", load=1.5)
    assert as_text(row) == ["x: 2.0 s, 1.00 GB peak, load 1.5; n", "  met     a"]
