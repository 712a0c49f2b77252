"""Frozen dataclasses to JSON values and back, by their type annotations.

Knows enums, tuples, dicts, optionals and nested dataclasses; nothing about what they mean. An
unknown or missing key is an error, never dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from draftrt.errors import BundleError

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return ``value`` (dataclass, enum, tuple, mapping or scalar) as plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, where: str = "manifest") -> T:
    """Rebuild a ``cls`` from the JSON data that `to_json` wrote.

    Raises:
        BundleError: data has a missing, unknown or ill-typed entry; ``where`` names the place.
    """
    decoded: T = _decode(cls, data, where)
    return decoded


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(where, data, "a list")
        kinds = [args[0]] * len(data) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(data):
            raise _wrong(where, data, f"{len(kinds)} entries")
        return tuple(
            _decode(k, item, f"{where}[{i}]")
            for i, (k, item) in enumerate(zip(kinds, data, strict=True))
        )
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise _wrong(where, data, "an object")
        return {
            _decode(args[0], key, where): _decode(args[1], item, f"{where}.{key}")
            for key, item in data.items()
        }
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = [member.value for member in kind]
        if data not in choices:
            raise _wrong(where, data, f"one of {choices}")
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise _wrong(where, f"an integer of {data.bit_length()} bits", "float") from None
    if kind is not Any and (not isinstance(data, kind) or (kind is int and isinstance(data, bool))):
        raise _wrong(where, data, kind.__name__)
    return data


def _decode_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    failures = []
    for kind in (kind for kind in args if kind is not type(None)):
        try:
            return _decode(kind, data, where)
        except BundleError as error:
            failures.append(error)
    raise failures[0]


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, data, f"an object ({kind.__name__})")
    hints = _hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    unknown, missing = sorted(set(data) - names), sorted(required - set(data))
    if unknown or missing:
        raise BundleError(
            f"{where}: unknown keys {unknown}, missing keys {missing}",
            hint="the file was written by another draftrt version; export it again",
        )
    return kind(
        **{name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()}
    )


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _wrong(where: str, data: Any, expected: str) -> BundleError:
    return BundleError(
        f"{where}: got {data!r:.80}, expected {expected}",
        hint="the file was edited or written by another draftrt version",
    )
