"""The toy target whose tables the family rows borrow."""

from __future__ import annotations

from typing import Any

import pytest

from draftrt.export.checkpoint.target import TargetCheckpoint, read_target
from tests.toys.formats import target_arrays
from tests.toys.models import ToyTarget
from tests.toys.toys import write_target


@pytest.fixture(scope="session")
def toy_target(tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    """A target of 6 layers, width 40 and 264 ids."""
    return read_target(write_target(tmp_path_factory.mktemp("toy-target") / "target"))


@pytest.fixture(scope="session")
def toy_tables() -> dict[str, Any]:
    """Its embedding and LM head as arrays, read from no file."""
    arrays = target_arrays(ToyTarget())
    return {
        "embed_tokens.weight": arrays["model.embed_tokens.weight"],
        "lm_head.weight": arrays["lm_head.weight"],
    }
