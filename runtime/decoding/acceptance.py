"""From target rows to the tokens of a round: picks the acceptance rule and feeds it row by row.

What a row may say can depend on the text before it (repetition penalty, minimum length), drafts
kept so far included; that text is known here, while the rules in `verify` stay free of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.proposal import Proposal
from draftrt.runtime.decoding.sampling import adjusted_scores, probabilities
from draftrt.runtime.decoding.verify import Acceptance, accept_matching, accept_rejection
from draftrt.runtime.targets.base import TargetRows


class Chooser:
    """Decides the tokens of one sequence under fixed options.

    Attributes:
        want_logits: whether the target's logits are needed beside its most probable tokens.
    """

    def __init__(self, options: DecodeOptions, rng: np.random.Generator) -> None:
        self.want_logits = (
            not options.is_greedy
            or options.repetition_penalty != 1
            or (options.min_tokens > 0 and bool(options.stop_ids))
        )
        self._options = options
        self._rng = rng

    def accept(
        self, proposal: Proposal, rows: TargetRows, text_ids: Sequence[int], num_new: int
    ) -> Acceptance:
        """Decide how many drafts stay and which token follows them.

        Args:
            proposal: k drafts; none for plain decoding.
            rows: what the target said after the anchor and after each draft, R = k + 1.
            text_ids: prompt and text so far, the anchor included.
            num_new: how many of them are new.
        """
        drafts: list[int] = proposal.token_ids.tolist()
        if not self.want_logits:
            chosen: list[int] = rows.token_ids.tolist()
            return accept_matching(drafts, chosen.__getitem__)
        view = _RowView(self._options, rows.logits, drafts, text_ids, num_new)
        if self._options.is_greedy:
            return accept_matching(drafts, lambda row: int(view.scores(row).argmax()))
        return accept_rejection(
            drafts,
            proposal.distribution,
            lambda row: probabilities(view.scores(row), self._options),
            self._rng,
        )


class _RowView:
    """Adjusted scores of each row, asked for in order."""

    def __init__(
        self,
        options: DecodeOptions,
        logits: NDArray[np.float32] | None,
        drafts: list[int],
        text_ids: Sequence[int],
        num_new: int,
    ) -> None:
        if logits is None:
            raise AssertionError("the target was asked for logits and gave none")
        self._options, self._logits, self._drafts, self._num_new = options, logits, drafts, num_new
        self._seen: NDArray[np.bool_] | None = None
        if options.repetition_penalty != 1:
            self._seen = np.zeros(logits.shape[1], np.bool_)
            ids = np.asarray(text_ids)
            self._seen[ids[ids < self._seen.size]] = True  # a padded table has rows without logits

    def scores(self, row: int) -> NDArray[np.float64]:
        if self._seen is not None and row:
            self._seen[self._drafts[row - 1]] = True  # kept, or this row would not be asked for
        is_early = self._num_new + row < self._options.min_tokens
        forbidden = (self._options.stop_ids or frozenset()) if is_early else frozenset()
        return adjusted_scores(self._logits[row], self._options, self._seen, forbidden)
