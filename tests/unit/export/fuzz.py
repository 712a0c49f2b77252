"""What every fuzz test asks: an answer or an expected failure, and soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from draftrt.codec import to_json
from draftrt.errors import DraftrtError
from draftrt.export.checkpoint.describe import describe_drafter, table
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint

LIMIT_SECONDS = 1.0


DEEP = "@deep"  # becomes lists in lists, deeper than Python's own functions can follow


def as_text(config: Any) -> str:
    return json.dumps(config).replace(f'"{DEEP}"', "[" * 900 + "]" * 900)


def nested_text(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def check(folder: Path, target: TargetCheckpoint | None, what: str) -> bool:
    """Load as `draftrt inspect` does; return whether there was an answer."""
    start = time.process_time()
    try:
        loaded = load_drafter(folder, target)
        list(table(loaded))
        json.dumps(describe_drafter(loaded))
        json.dumps(to_json(loaded.spec), allow_nan=False)  # nothing infinite got into a fact
        message, answered = "an answer", True
    except DraftrtError as error:
        message, answered = str(error), False
    except Exception as error:  # noqa: BLE001 - the test's whole point
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert time.process_time() - start < LIMIT_SECONDS, what
    assert message.encode("utf-8", "backslashreplace"), what
    return answered
