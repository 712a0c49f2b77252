"""draftrt: block drafters for speculative decoding, from checkpoint to a low-latency GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftrt.runtime.decoding.grammar import Grammar
    from draftrt.runtime.decoding.options import DecodeOptions
    from draftrt.runtime.load import load

__version__ = "0.1.0"
__all__ = ["DecodeOptions", "Grammar", "__version__", "load"]
_PLACES = {
    "DecodeOptions": "draftrt.runtime.decoding.options",
    "Grammar": "draftrt.runtime.decoding.grammar",
    "load": "draftrt.runtime.load",
}


def __getattr__(name: str) -> object:
    """Import what the package shows of its runtime when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'draftrt' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
