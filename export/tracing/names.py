"""The names of what a module computes: the path of the module that computes it.

A module names its values as its checkpoint names its weights: what meets
``layers.3.self_attn.q_proj.weight`` gives ``layers.3.self_attn.q_proj``. A recorder writes the
names into the graph; `watched` shows the same values by the same names while a module computes.
Loads no PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, NamedTuple, Protocol, TypeVar

LAYER = re.compile(r"^((?:model\.)?layers\.)(\d+)\.")
CACHE = re.compile(r"^((?:past|present)_[a-z]+_)(\d+)$")
OUTPUT = "output"  # of a layer: the residual stream behind it
EMBEDDING = "embed_tokens.output"  # the residual stream before the first layer
MASK, ATTENTION, QUERY, KEYS, VALUES = "mask", "attention", "query", "keys", "values"
CHOICE, MAPPED = "choice", "d2t.ids"  # the best of each row; ids of the target's vocabulary
HIDDEN = "norm.rows"  # the rows that yield drafts, normed


class Named(NamedTuple):
    """The name of a value.

    Attributes:
        path: what computes it.
        number: which of the values of that name.
    """

    path: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.path}.{self.number}" if self.number else self.path


class Listener(Protocol):
    """Who hears of named values."""

    def name(self, path: str, value: Any, into: Any) -> None:
        """Take note of a value, and of what it is computed from."""


T = TypeVar("T")


class _State(local):
    """What is being computed in this thread."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.listeners: list[Listener] = []


_state = _State()


def current_path() -> str:
    """Return the path of the module that computes now; empty outside of all."""
    return _state.paths[-1] if _state.paths else ""


@contextmanager
def inside(path: str) -> Iterator[None]:
    """Let a module compute for a while."""
    _state.paths.append(path)
    try:
        yield
    finally:
        _state.paths.pop()


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let a listener hear of this thread's values for a while."""
    _state.listeners.append(listener)
    try:
        yield
    finally:
        _state.listeners.remove(listener)


def name(value: T, path: str, into: Any = None) -> T:
    """Name a value by the path of what computes it, and return it.

    Args:
        value: a tensor.
        path: its name; of several values of that name the second is ``PATH.1``.
        into: the tensor it is computed from, beside weights.
    """
    for listener in _state.listeners:
        listener.name(path, value, into)
    return value


class Watch:
    """Collects values by name, in the order they come."""

    def __init__(self, take: Callable[[Named, Any, Any], None]) -> None:
        self._take = take
        self._counts: dict[str, int] = {}

    def name(self, path: str, value: Any, into: Any) -> None:
        """Hand a value on with its number."""
        number = self._counts[path] = self._counts.get(path, -1) + 1
        self._take(Named(path, number), value, into)


@contextmanager
def values_of(*wanted: str) -> Iterator[dict[str, Any]]:
    """Give a table that fills with the values of these names while a module computes."""
    found: dict[str, Any] = {}

    def take(name: Named, value: Any, into: Any) -> None:
        if str(name) in wanted:
            found[str(name)] = value

    with heard_by(Watch(take)):
        yield found


def state_name(layer: int, prefix: str = "") -> str:
    """Return the name of the residual stream behind a layer; -1 is the one before the first.

    Args:
        layer: its number.
        prefix: of the model's weights, as ``model.`` of a target.
    """
    return prefix + (EMBEDDING if layer < 0 else f"layers.{layer}.{OUTPUT}")


def is_of_a_layer(name: str) -> bool:
    """Whether a value, weight or cache is a layer's, or the stream that goes into the first."""
    return bool(LAYER.match(name) or CACHE.match(name)) or name.endswith(EMBEDDING)
