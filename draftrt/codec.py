"""Data to and from JSON: of dataclasses, and read from files.

Frozen dataclasses to JSON values and back, by their type annotations.

Knows enums, tuples, dicts, optionals and nested dataclasses; nothing about what they mean. An
unknown or missing key is an error, never dropped.

JSON files read in one place: what may be read at all, and what is said where it may not.

What a path can be and what lies there is asked before anything is opened: opening a pipe waits for
whoever writes to it, for ever where there is nobody.

A file has to be a regular one of at most `MOST_BYTES`, in UTF-8 (a byte order mark is skipped), and
to hold one object in which no key stands twice, nested at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import stat
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from draftrt.errors import BundleError, DraftrtError

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
            _key(args[0], key, where): _decode(args[1], item, f"{where}.{key}")
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


def _key(kind: Any, key: str, where: str) -> Any:
    """Return the key of an object; JSON has texts only."""
    if kind is int and key.isascii() and key.isdecimal():
        return int(key)
    return _decode(kind, key, where)


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


MOST_BYTES = 1 << 28
MAX_DEPTH = 32
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
INCOMPLETE = "the download is incomplete; take the file from its publisher again"


def path_problem(path: str | os.PathLike[str]) -> str:
    """Return why there can be nothing at a path, not even something new; empty when there can."""
    text = os.fspath(path)
    if not text:
        return "got an empty path"
    if "\0" in text:
        return f"{text!r:.60}: got a NUL byte in a path"
    try:
        Path(text).stat()
    except OSError as error:
        if error.errno in NO_PATH:
            return f"{text if len(text) <= 200 else text[:57] + '...'}: {error.strerror}"
    return ""


def folder_problem(folder: Path) -> str:
    """Return why a path is that of no folder; empty when it is."""
    if problem := path_problem(folder):
        return problem
    if folder.is_dir():
        return ""
    if folder.exists():
        kind = KINDS.get(stat.S_IFMT(folder.stat().st_mode), "a file")
        return f"{folder}: got {kind}, expected a folder"
    if folder.is_symlink():
        return f"{folder}: is a link to {folder.readlink()}, which is not there"
    return f"{folder}: no such folder"


def read_object(
    path: Path, fault: type[DraftrtError], *, hint: str = "", most: int = MOST_BYTES
) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: the file.
        fault: class of the error that says what is wrong with it.
        hint: what to do where there is no such file.
        most: bytes a file may have.

    Raises:
        DraftrtError: of class ``fault``: no such file, no regular file, too large, not UTF-8, no
            JSON, no object, a key twice, or nested too deeply.
    """
    try:
        data = parse(read_bytes(path, fault, hint=hint, most=most))
    except ValueError as error:
        text = f"{path}: cannot be read as JSON: {error!s:.200}"
        raise fault(text, hint=_advice(path, error)) from error
    if not isinstance(data, dict):
        raise fault(f"{path}: got {shown(data)}, expected a JSON object")
    return data


def read_bytes(
    path: Path, fault: type[DraftrtError], *, hint: str = "", most: int = MOST_BYTES
) -> bytes:
    """Read a regular file of limited size.

    Raises:
        DraftrtError: of class ``fault``.
    """
    check_file(path, fault, hint=hint, most=most)
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)  # what lies in /proc states no size
    except OSError as error:
        raise fault(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise fault(f"{path}: has more than {most / 1e6:.0f} MB, expected at most that")
    return content


def check_file(
    path: Path, fault: type[DraftrtError], *, hint: str = "", most: int | None = None
) -> None:
    """Refuse what is no regular file of at most ``most`` bytes, without opening it.

    Raises:
        DraftrtError: of class ``fault``.
    """
    if problem := path_problem(path):
        raise fault(problem, hint=hint)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            there = path.readlink()
            raise fault(f"{path}: is a link to {there}, which is not there") from error
        if path.parent.exists() and (problem := folder_problem(path.parent)):
            raise fault(problem, hint=hint) from error
        raise fault(f"{path}: missing", hint=hint) from error
    except OSError as error:
        raise fault(f"{path}: cannot be read: {error.strerror}") from error
    kind = KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise fault(f"{path}: got {kind}, expected a file", hint=hint)
    if most is not None and found.st_size > most:
        raise fault(
            f"{path}: has {found.st_size / 1e6:.0f} MB, expected at most {most / 1e6:.0f} MB"
        )


def parse(content: bytes) -> Any:
    """Return the JSON value that a file holds.

    Raises:
        ValueError: with what is wrong in a few words.
    """
    if content[:2] in UTF16:
        raise ValueError("it is UTF-16, expected UTF-8")
    try:
        text = content.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise ValueError("it is empty")
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    if not _is_shallow(data):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in made if names.count(name) > 1} if len(names) < 99 else ())
        raise ValueError(f"a key stands twice in one object{': ' if twice else ''}{twice or ''}")
    return made


def _is_shallow(value: Any) -> bool:
    """Whether all of a JSON value lies within `MAX_DEPTH` levels; never recurses."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for entry in level
            if isinstance(entry, (dict, list))
            for item in (entry.values() if isinstance(entry, dict) else entry)
        ]
    return not level


def _advice(path: Path, error: ValueError) -> str:
    with path.open("rb") as stream:
        start = stream.read(64)
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself with `git lfs pull`"
    if "twice" in str(error):
        return "remove all but the one that is meant; nothing is guessed"
    return INCOMPLETE if "empty" in str(error) or "Unterminated" in str(error) else ""


def shown(value: Any) -> str:
    """Return a value in at most 60 characters."""
    is_huge = isinstance(value, int) and abs(value) >= 10**18
    text = f"an integer of {value.bit_length()} bits" if is_huge else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """Return the ids that a config states as one number, as a list of them, or as null.

    Args:
        value: what stands there.
        where: the place, for the message.

    Raises:
        ValueError: anything else, and negative ones.
    """
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in ids):
        raise ValueError(f"{where}: got {shown(value)}, expected a token id or a list of them")
    return tuple(ids)
