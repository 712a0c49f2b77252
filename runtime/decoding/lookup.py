"""Drafts from the text itself: what followed the last tokens where they stood before.

Answers that quote, edit or list repeat long pieces of their prompt (prompt lookup decoding,
Saxena 2023). The last few tokens are looked up among all earlier ones; what followed them there,
the last time, are the drafts. It takes no model and no time worth counting.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that are looked up


class TextIndex:
    """Where each short run of tokens of a text ended last."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._earlier: dict[tuple[int, ...], int] = {}

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take over a text: one that goes on behind the text before, or another one."""
        known = len(self._token_ids)
        last = known - 1
        if len(token_ids) < known or (known and token_ids[last] != self._token_ids[last]):
            self.forget()
            known = 0
        for token in token_ids[known:]:
            self._add(token)

    def forget(self) -> None:
        """Forget the text."""
        self._token_ids.clear()
        self._ends.clear()
        self._earlier.clear()

    def _add(self, token: int) -> None:
        self._token_ids.append(token)
        end = len(self._token_ids)
        for length in range(SHORTEST, min(LONGEST, end) + 1):
            run = tuple(self._token_ids[end - length :])
            if (before := self._ends.get(run)) is not None:
                self._earlier[run] = before
            self._ends[run] = end

    def find(self, most: int) -> tuple[int, list[int]]:
        """Return how many last tokens stood before, and at most ``most`` tokens that followed them.

        What followed may reach into the looked up tokens and beyond: it goes on as it began. 0 and
        no tokens where the last `SHORTEST` ones are new.
        """
        text = self._token_ids
        for length in range(min(LONGEST, len(text)), SHORTEST - 1, -1):
            start = self._earlier.get(tuple(text[len(text) - length :]))
            if start is None:
                continue
            found: list[int] = []
            while len(found) < most:
                at = start + len(found)
                found.append(text[at] if at < len(text) else found[at - len(text)])
            return length, found
        return 0, []
