"""Importing large libraries."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def first_import(library: str) -> Iterator[None]:
    """Keep the garbage collector away from what the first import of a library makes.

    PyTorch makes a million objects that live as long as the process. Going over them again and
    again takes a fifth of the import, and going over them at the end of the process as long as
    several exports (measured in docs/log.md). They are handed to the collector's permanent
    generation; whatever is made later is collected as ever.

    Args:
        library: does nothing where this one is imported already.
    """
    if library in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
