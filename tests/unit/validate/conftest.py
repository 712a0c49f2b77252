"""A recorded row in the making, to be changed and then written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def row() -> dict[str, Any]:
    """A DeepSpec row: block 3, five new tokens."""
    return {
        "prompt": "some text",
        "prompt_ids": [1, 2],
        "output_ids": [3, 4, 5, 6, 7],
        "confidence_threshold": 0.0,
        "target_greedy_equal": True,
        "acceptance_lengths": [2, 1, 2],
        "proposal_lengths": [3, 3, 3],
        "accepted_draft_lengths": [1, 0, 1],
    }


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[[Any], Path]:
    def write(content: Any) -> Path:
        path = tmp_path / "expected.json"
        path.write_text(json.dumps(content))
        return path

    return write
