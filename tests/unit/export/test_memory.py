"""Exports that there is no memory for are refused before their work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from draftrt.provenance import available_memory, total_memory

pytest.importorskip("torch")
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30))
from draftrt.cli import group
try:
    group(sys.argv[1:])
finally:
    print("torch loaded" if "torch" in sys.modules else "torch not loaded")
"""


@pytest.mark.needs("/proc/self/status")
def test_caches_too_large_for_a_limit_are_refused_with_numbers_before_the_work(
    root: Path, tmp_path: Path
) -> None:
    pair = [str(root / "tests/assets" / name) for name in ("tiny-dflash", "tiny-target")]
    line = ["export", pair[0], "--target", pair[1], "--max-context", "4000000", "-o", "b"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *line], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "the export takes about 19." in done.stderr
    assert re.search(r"this process can have [1-5]\.\d GB", done.stderr)
    assert "caches of 4000000 rows: draft 2.0 GB, target 6.1 GB" in done.stderr
    assert "torch not loaded" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("/proc/meminfo")
def test_a_process_can_have_what_is_free_and_no_more_than_there_is() -> None:
    total, free = total_memory(), available_memory()
    assert total is not None
    assert free is not None
    assert 0 < free <= total
