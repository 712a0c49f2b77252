"""The documented example of writing a target is a complete one."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from draftrt.errors import FeedError
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.targets import base


def test_the_example_in_the_docstring_decodes() -> None:
    assert base.__doc__ is not None
    _, _, example = base.__doc__.partition("cut at any length:\n\n")
    names: dict[str, Any] = {"np": np, "TargetRows": base.TargetRows, "Croppable": base.Croppable}
    exec(textwrap.dedent(example), names)
    counting: base.Target = names["CountingTarget"]()
    for temperature in (0.0, 0.01):
        options = DecodeOptions(max_tokens=5, temperature=temperature)
        rounds = list(DecodeLoop(counting).decode((95, 97), options))
        assert [token for one in rounds for token in one.token_ids] == [98, 99, 0, 1, 2]
    assert counting.length == 6
    kept = counting.snapshot()
    counting.verify(np.array([1, 2]))
    counting.restore(kept)
    assert (counting.length, counting.reach(9), counting.reach(4)) == (6, 6, 4)
    counting.rollback(5)
    with pytest.raises(FeedError, match="the cache holds 5 now"):
        counting.restore(kept)
