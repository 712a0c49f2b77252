"""Which ONNX operators a graph may use."""

from __future__ import annotations

from enum import Enum


class Profile(str, Enum):
    """Which ONNX operators a traced graph may use."""

    FIXED = "fixed"
    COMPAT = "compat"

    @property
    def opset(self) -> int:
        """ONNX opset version of the profile."""
        return 24 if self is Profile.FIXED else 20
