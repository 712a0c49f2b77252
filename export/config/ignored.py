"""Whose keys ``--ignore-key`` names: the drafter's, or with ``target:`` before it the target's."""

from __future__ import annotations

from collections.abc import Iterable

OF_TARGET = "target:"


def of_draft(keys: Iterable[str]) -> frozenset[str]:
    """Return the names that are about the drafter's config."""
    return frozenset(key for key in keys if not key.startswith(OF_TARGET))


def of_target(keys: Iterable[str]) -> frozenset[str]:
    """Return the names that are about the target's config, without ``target:``."""
    return frozenset(key.removeprefix(OF_TARGET) for key in keys if key.startswith(OF_TARGET))
