"""Published drafters and their targets, as `pairs.json` beside this file lists them.

A row helps to find a drafter. Nothing is ever taken from it: what a drafter is its checkpoint says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from draftrt.hub.names import origin_of
from draftrt.spec import Family

SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPair:
    """A published drafter.

    Attributes:
        drafter: its name on the hub.
        target: the target's name there, without its owner.
        family: how it drafts.
        tried: ``dimensions``, ``form`` or ``refused``, as docs/formats.md has them.
        note: the golden case of its form, or why it is refused; may be empty.
        acceptance: acceptance length that its card states; None where the card was not read.
    """

    drafter: str
    target: str
    family: Family
    tried: str
    note: str
    acceptance: float | None


@cache
def published_pairs() -> tuple[PublishedPair, ...]:
    """Return every row of the registry."""
    rows = json.loads(Path(__file__).with_name("pairs.json").read_text(encoding="utf-8"))
    return tuple(PublishedPair(**{**row, "family": Family(row["family"])}) for row in rows)


def drafters_of(target: Path | str) -> list[PublishedPair]:
    """Return the drafters of a target, those first that were not refused.

    Args:
        target: its name with or without owner and revision, its folder, or a snapshot's.
    """
    path = Path(target)
    origin = origin_of(path) if path.is_dir() else None
    name = (origin.repository if origin else str(target).partition("@")[0]).rstrip("/")
    wanted = _plain(name.rpartition("/")[2])
    found = [one for one in published_pairs() if _plain(one.target) == wanted]
    return sorted(found, key=lambda one: one.tried == "refused")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def candidates(target: Path | str | None) -> str:
    """Return a sentence that names drafters of a target; empty where none is known."""
    found = [] if target is None else drafters_of(target)
    names = [one.drafter for one in found if one.tried != "refused"]
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"published drafters of {found[0].target}: {', '.join(names[:SHOWN])}{more}"


def as_rows(pairs: Sequence[PublishedPair]) -> list[list[str]]:
    """Return a table, its heading first."""
    heading = ["drafter", "target", "family", "tried", "acceptance length", "note"]
    return [
        heading,
        *(
            [
                one.drafter,
                one.target,
                one.family.value,
                one.tried,
                "" if one.acceptance is None else f"{one.acceptance:g}",
                one.note,
            ]
            for one in pairs
        ),
    ]
