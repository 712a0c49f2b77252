"""Reading a config key by key: type, range, precedence, contradiction, and where it came from.

Knows nothing of drafters. Every look-up either records the place a fact was read from, or a
finding; nothing is raised until `done`, so that all problems of a config are told at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from draftrt.codec import shown
from draftrt.errors import DraftrtError, SpecError, UnsupportedError, collect

T = TypeVar("T")
REQUIRED: Any = object()
LARGEST = 1 << 40


class Facts:
    """A config with bookkeeping.

    Attributes:
        path: file the config was read from, for messages.
        config: its JSON object.
        findings: problems found so far.
        sources: fact name to the place it was read from.
        warnings: remarks that are no error.
        is_whole: false once a fact without a usable value was met; later checks that need every
            fact are then left out.
    """

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        self.path = path
        self.config = config
        self.findings: list[DraftrtError] = []
        self.sources: dict[str, str] = {}
        self.warnings: list[str] = []
        self.is_whole = True
        self._used: set[str] = set()
        self._adopted: dict[str, str] = {}

    def raw(self, path: str) -> Any:
        """Return the value at a dotted path, None where absent, and mark the key as understood."""
        self._used.add(path)
        value: Any = self.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def adopt(self, scope: str, keys: Iterable[str]) -> None:
        """Read keys of an object at the top as well, where a config has them there.

        Where both places state one, they must agree.

        Args:
            scope: the object's path with its dot.
            keys: names in it.
        """
        inner = self.config[scope[:-1]]
        for key in keys:
            top, own = self.raw(key), inner.get(key)
            if top is None:
                continue
            if own is None:
                self.config = {**self.config, scope[:-1]: {**inner, key: top}}
                inner = self.config[scope[:-1]]
                self._adopted[f"{scope}{key}"] = key
            elif top != own:
                self.error(
                    f"{key} is stated with different values: {scope}{key} = {shown(own)}, "
                    f"{key} = {shown(top)}",
                    "keep the one the checkpoint was trained with; nothing is guessed",
                )

    def table(self, path: str) -> dict[str, Any]:
        """Return the object at a path; empty where absent, a finding where it is no object."""
        value = self.raw(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.error(f"{path}: got {shown(value)}, expected an object")
            return {}
        return value

    def error(self, message: str, hint: str = "", *, unsupported: bool = False) -> None:
        """Add a finding about this config."""
        kind = UnsupportedError if unsupported else SpecError
        self.findings.append(kind(f"{self.path.name}: {message}", hint=hint))

    def say(self, fact: str, source: str) -> None:
        """Record where a fact came from."""
        for path, adopted in self._adopted.items():
            source = source.replace(path, adopted)
        self.sources[fact] = source

    def number(
        self,
        fact: str,
        paths: Sequence[str],
        *,
        default: Any = REQUIRED,
        why: str = "",
        low: int = 0,
        high: int = LARGEST,
        hint: str = "",
    ) -> int:
        """Return an integer; the first path that holds one wins, different ones are an error."""

        def parse(value: Any) -> int | None:
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            return value if ok else None

        expected = (
            f"an integer from {low} to {high}" if high < LARGEST else f"an integer from {low} on"
        )
        found: int = self._take(fact, paths, parse, expected, default, why, max(low, 1), hint)
        return found

    def real(
        self,
        fact: str,
        paths: Sequence[str],
        *,
        default: Any = REQUIRED,
        why: str = "",
        positive: bool = True,
    ) -> float:
        """Return a finite number, positive unless told otherwise."""

        def parse(value: Any) -> float | None:
            if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > 1e30:
                return None
            return float(value) if math.isfinite(value) and (value > 0 or not positive) else None

        found: float = self._take(
            fact, paths, parse, "a positive number" if positive else "a number", default, why, 1.0
        )
        return found

    def flag(
        self, fact: str, paths: Sequence[str], *, default: Any = REQUIRED, why: str = ""
    ) -> bool:
        """Return a truth value."""
        found: bool = self._take(
            fact,
            paths,
            lambda v: v if isinstance(v, bool) else None,
            "true or false",
            default,
            why,
            False,
        )
        return found

    def text(
        self,
        fact: str,
        paths: Sequence[str],
        *,
        choices: Iterable[str] | None = None,
        default: Any = REQUIRED,
        why: str = "",
    ) -> str:
        """Return a string, one of ``choices`` where given."""
        allowed = None if choices is None else sorted(choices)

        def parse(value: Any) -> str | None:
            return (
                value if isinstance(value, str) and (allowed is None or value in allowed) else None
            )

        expected = "a string" if allowed is None else f"one of {allowed}"
        found: str = self._take(fact, paths, parse, expected, default, why, (allowed or [""])[0])
        return found

    def numbers(self, fact: str, path: str, *, low: int, high: int) -> tuple[int, ...] | None:
        """Return a non-empty list of integers at one path, None where absent."""
        value = self.raw(path)
        if value is None:
            return None
        ok = (
            isinstance(value, list)
            and 0 < len(value) <= 1024
            and all(
                isinstance(item, int) and not isinstance(item, bool) and low <= item <= high
                for item in value
            )
        )
        if not ok:
            self.error(
                f"{path}: got {shown(value)}, expected a list of integers from {low} to {high}"
            )
            self.is_whole = False
            return None
        return tuple(value)

    def _take(
        self,
        fact: str,
        paths: Sequence[str],
        parse: Any,
        expected: str,
        default: Any,
        why: str,
        stand_in: Any,
        hint: str = "",
    ) -> Any:
        present = [(path, value) for path in paths if (value := self.raw(path)) is not None]
        parsed = []
        for path, value in present:
            good = parse(value)
            if good is None:
                self.error(f"{path}: got {shown(value)}, expected {expected}", hint)
            else:
                parsed.append((path, good))
        if any(value != parsed[0][1] for _, value in parsed):
            stated = ", ".join(f"{path} = {shown(value)}" for path, value in parsed)
            self.error(
                f"{fact} is stated with different values: {stated}",
                "keep the one the checkpoint was trained with; nothing is guessed",
            )
        if parsed:
            self.say(fact, parsed[0][0])
            return parsed[0][1]
        if not present and default is not REQUIRED:
            self.say(fact, why or "default")
            return default
        if not present:
            self.error(
                f"{fact} is missing, expected {expected} at {' or '.join(paths)}",
                hint or "the config must state it; nothing is inferred",
            )
        self.is_whole = False
        return stand_in

    def unknown_keys(self, scope: str, harmless: frozenset[str]) -> list[str]:
        """Return keys of an object (``""``: the top) neither read nor listed as harmless."""
        table: Any = self.config
        for part in filter(None, scope.split(".")):
            table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            return []
        prefix = f"{scope}." if scope else ""
        return sorted(
            f"{prefix}{key}"
            for key, value in table.items()
            if key not in harmless
            and not key.startswith("_")
            and value is not None
            and not self._is_used(prefix + key)
        )

    def _is_used(self, path: str) -> bool:
        return path in self._used or any(used.startswith(path + ".") for used in self._used)

    def done(self) -> None:
        """Raise everything found, if anything was."""
        collect(self.findings)
