"""The text that a graph's cache rows hold, and snapshots of its states on the way there.

A snapshot holds states alone; the keys and values below its length lie in the caches until a call
overwrites them. So a snapshot is worth something only while the rows hold the tokens that it was
taken behind: a call that writes another token ends every snapshot behind it. What is kept at a time
belongs to one text, whose rows they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftrt.runtime.targets.base import Snapshot

CHUNK = 256  # tokens compared at once


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    most = min(len(one), len(other))
    start = 0
    while start < most and list(one[start : start + CHUNK]) == list(other[start : start + CHUNK]):
        start += CHUNK
    while start < most and one[start] == other[start]:
        start += 1
    return min(start, most)


class CachedText:
    """The tokens of the rows that a graph's caches hold, with snapshots bounded by their bytes.

    Attributes:
        token_ids: of the rows from 0 on; those behind the target's length were rolled back and are
            still there.
        most_bytes: of all kept snapshots together.
    """

    def __init__(self, most_bytes: int) -> None:
        self.token_ids: list[int] = []
        self.most_bytes = most_bytes
        self._kept: list[Snapshot] = []  # the shortest first

    @property
    def num_bytes(self) -> int:
        """Bytes of all kept snapshots."""
        return sum(one.num_bytes for one in self._kept)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The most tokens that each kept snapshot leads back to, the fewest first."""
        return tuple(one.length for one in self._kept)

    def begin(self, length: int, token_ids: Sequence[int]) -> None:
        """Take note that a call writes these tokens behind ``length`` others.

        Where it is broken off, rows hold the old token or the new one; where both are the same,
        that is no matter.
        """
        same = common_length(self.token_ids[length : length + len(token_ids)], token_ids)
        self.cut(length + same)

    def end(self, length: int, token_ids: Sequence[int]) -> None:
        """Take note that the call has succeeded."""
        self.token_ids[length:] = token_ids

    def cut(self, length: int) -> None:
        """Take note that rows from ``length`` on no longer hold what they held."""
        del self.token_ids[length:]
        self._kept = [
            replace(one, length=min(one.length, length))
            for one in self._kept
            if one.first <= length
        ]

    def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of this text; the least useful ones go where there is no room.

        A snapshot saves the tokens between the one before it and itself. The new one stays.
        """
        if not 0 < snapshot.num_bytes <= self.most_bytes:
            return
        kept = [one for one in self._kept if one.length != snapshot.length]
        room = self.most_bytes - snapshot.num_bytes
        kept.append(replace(snapshot, token_ids=()))
        kept.sort(key=lambda one: one.length)
        while sum(one.num_bytes for one in kept) - snapshot.num_bytes > room:
            before = [0, *(one.length for one in kept)]
            saved = {
                one.length - before[place]: place
                for place, one in reversed(list(enumerate(kept)))
                if one.length != snapshot.length
            }
            del kept[saved[min(saved)]]
        self._kept = kept

    def nearest(self, length: int) -> Snapshot | None:
        """Return the snapshot that leads back to the most of the first ``length`` tokens."""
        leading = [one for one in self._kept if one.first <= length]
        return max(leading, key=lambda one: min(one.length, length), default=None)
