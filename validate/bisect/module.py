"""What a PyTorch module computes on the way, by the names that its graph has too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from draftrt.export.tracing.names import (
    KEYS,
    LAYER,
    OUTPUT,
    QUERY,
    VALUES,
    Named,
    Watch,
    heard_by,
)

if TYPE_CHECKING:
    from torch import Tensor

INTO, OUT = "into", "out of"
CACHES = (f"self_attn.{KEYS}", f"self_attn.{VALUES}")  # steps
QUERIES = f"self_attn.{QUERY}"


@dataclass(frozen=True, slots=True, order=True)
class RecordedPlace:
    """Where a value is.

    Attributes:
        path: what computes it, as ``layers.3.self_attn.q_proj``.
        number: which of several values of that path.
        side: `INTO` or `OUT`.
    """

    path: str
    number: int = 0
    side: str = OUT

    @property
    def name(self) -> str:
        """The name of the value that is computed there."""
        return str(Named(self.path, self.number))

    @property
    def module(self) -> str:
        """The path of the module whose weights are used there."""
        return self.path.removesuffix(f".{OUTPUT}")

    @property
    def layer(self) -> int | None:
        """The decoder layer; None outside the layers."""
        match = LAYER.match(self.path)
        return int(match[2]) if match else None

    @property
    def weights(self) -> tuple[str, str]:
        """The names that a weight used there may have."""
        return f"{self.module}.weight", self.path.rpartition(".")[0]

    @property
    def step(self) -> str:
        """What happens there, without the layer, as ``self_attn.q_norm``."""
        return LAYER.sub("", self.path)

    def __str__(self) -> str:
        return f"{INTO} {self.name}" if self.side == INTO else self.name


Values = dict[RecordedPlace, NDArray[Any]]


@contextmanager
def watched() -> Iterator[Values]:
    """Give a table that fills with a module's values, in the order they come, while it runs."""
    values: Values = {}

    def take(name: Named, value: Tensor, into: Tensor | None) -> None:
        if into is not None:
            values[RecordedPlace(*name, INTO)] = to_array(into)
        values[RecordedPlace(*name)] = to_array(value)

    with heard_by(Watch(take)):
        yield values


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's content; floats as float32."""
    value = tensor.detach()
    array: NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy().copy()
    return array
