"""Which golden case goes with which of the checkpoints given beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from draftrt.bundle import sha256_of
from draftrt.validate.records.cases import recorded_hashes
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.matrix import Source

CONFIG = "config.json"


def sources_of(
    cases: Sequence[Path], drafts: Sequence[Path], target: Path | None
) -> tuple[list[Source], list[Path]]:
    """Return the cases, and the checkpoints that no case was made from.

    A case that holds only the hashes of its drafter takes the checkpoint that has them. It is read
    and checked with the case: a checkpoint whose config is the recorded one and whose weights are
    not is taken too, to be refused with both hashes.

    Args:
        cases: folders of golden cases.
        drafts: checkpoints.
        target: the target of all of them.

    Returns:
        Sources of the cases, in their order, and the checkpoints left over, in theirs.
    """
    found, taken = [], set()
    for case in cases:
        draft = _checkpoint_of(case, drafts)
        found.append(Source(case=case, draft=draft, target=target))
        taken.add(draft)
    return found, [draft for draft in drafts if draft not in taken]


def _checkpoint_of(case: Path, drafts: Sequence[Path]) -> Path | None:
    try:
        hashes = recorded_hashes(case)
    except RecordError:  # told as that case's result, when it is read as a whole
        return None
    near = [draft for draft in drafts if _has(draft, hashes, CONFIG)] if hashes else []
    if len(near) < 2:
        return near[0] if near else None
    same = [draft for draft in near if all(_has(draft, hashes, name) for name in hashes)]
    return (same or near)[0]


def _has(draft: Path, hashes: Mapping[str, str], name: str) -> bool:
    path = draft / name
    return path.is_file() and sha256_of(path) == hashes.get(name)
