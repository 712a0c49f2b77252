"""A window that no layer has: told, unless the config says in so many words that none slides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.toys.models import REMOVED, Kind

WIDTH = "dflash_config.swa_window_size"
NOT_SAID = {"layer_types": REMOVED, "use_sliding_window": REMOVED, "sliding_window": 16}
OLDER = {"layer_types": REMOVED, "sliding_window": 16}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (NOT_SAID, "sliding_window 16 is not used: neither layer_types nor use_sliding_window"),
        (
            {**OLDER, "use_sliding_window": True, "max_window_layers": 28},
            "sliding_window 16 is not used: max_window_layers leaves every layer full",
        ),
        (
            {
                "layer_types": REMOVED,
                "use_sliding_window": REMOVED,
                "dflash_config.swa_window_size": 9,
            },
            "dflash_config.swa_window_size 9 is not used",
        ),
        ({**OLDER, "use_sliding_window": False}, ""),
        ({"sliding_window": 16}, ""),
        ({WIDTH: 9, "use_sliding_window": REMOVED}, "dflash_config.swa_window_size 9 is not used"),
        ({WIDTH: 9, "use_sliding_window": REMOVED, "dflash_config.use_swa": False}, ""),
        ({**NOT_SAID, "sliding_window": None}, ""),
    ],
)
def test_a_window_that_no_layer_has_is_told(
    config: dict[str, Any],
    says: str,
    draft: Callable[..., Path],
    inspect: Callable[..., Result],
) -> None:
    told = inspect(draft(Kind.ZLAB_DFLASH, overrides=config))
    assert told.exit_code == 0, told.stderr
    assert "full, not causal" in told.stdout
    assert ("warning:" in told.stderr) == bool(says)
    assert says in told.stderr
