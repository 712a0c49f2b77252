"""Sizes of a graph that are open until it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftrt.errors import ExportError

Combine = Callable[[str, int, int, int], int]  # ONNX operator, operands, result


class Size(int):
    """An open size: a number to compute shapes with, and the value in the graph it stands for."""

    _combine: Combine

    @classmethod
    def of(cls, value: int, combine: Combine) -> Size:
        """Return the open size that ``value`` stands for; ``combine`` records its arithmetic."""
        made = cls(value)
        made._combine = combine
        return made

    def __add__(self, other: int) -> int:
        return self._combine("Add", self, other, int(self) + int(other))

    def __radd__(self, other: int) -> int:
        return self + other

    def __sub__(self, other: int) -> int:
        return self._combine("Sub", self, other, int(self) - int(other))

    def __mul__(self, other: int) -> int:
        return self._combine("Mul", self, other, int(self) * int(other))

    def __rmul__(self, other: int) -> int:
        return self * other

    def _refuse(self, other: object) -> bool:
        raise ExportError(
            "a module decides something by an open size, which a graph cannot follow",
            hint="a defect of draftrt, please report it",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = int.__hash__


def plain(value: Any) -> Any:
    """Return arguments of a call with open sizes as plain numbers."""
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(plain(item) for item in value)
    return value
