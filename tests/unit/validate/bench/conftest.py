"""The toy language of the runtime's tests, for what times it."""

from __future__ import annotations

from tests.unit.runtime.conftest import toy

__all__ = ["toy"]
