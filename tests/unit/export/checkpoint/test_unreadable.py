"""A weight file that may not be read is told like any other fault of a checkpoint."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CODE = """
import os, pathlib, sys
from draftrt.export.checkpoint.safetensors import read_headers
if os.getuid() == 0:  # whom no permission stops
    os.setuid(65534)
read_headers(pathlib.Path(sys.argv[1]))
"""


def test_a_weight_file_without_permission_is_told(assets: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o755)
        draft = Path(shutil.copytree(assets / "tiny-dflash", Path(name) / "draft"))
        (draft / "model.safetensors").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(draft)], capture_output=True, text=True, check=False
        )
    assert "CheckpointError" in done.stderr
    assert f"{draft / 'model.safetensors'}: cannot be read: Permission denied" in done.stderr
