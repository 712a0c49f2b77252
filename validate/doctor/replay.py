"""A drafter replayed over recorded texts: the PyTorch module with one fact changed, no export.

A target's greedy text does not depend on the drafter, so how many drafts would be kept at an anchor
can be read off the text. Every suspect drafts at the anchors of the same rounds, each over a cache
of its own that holds the whole context so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from draftrt.signature import ANCHOR, CONTEXT_LENGTH, DRAFT_IDS, TARGET_HIDDEN
from draftrt.spec import Precision
from draftrt.validate.doctor.recording import Text
from draftrt.validate.doctor.suspects import Suspect
from draftrt.validate.rounds.module import ReferenceRounds

if TYPE_CHECKING:
    from torch import Tensor

    from draftrt.export.models.drafter import Drafter


def widened(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in float32, without the rotary tables, which follow from the facts."""
    return {
        name: value.float() if value.is_floating_point() else value
        for name, value in weights.items()
        if not name.startswith("rope.")
    }


class Held:
    """Weights in a table: a module that draws on it looks nothing up in itself."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get_parameter(self, target: str) -> Tensor:
        """Return a weight by its name; AttributeError when there is none."""
        try:
            return self._tensors[target]
        except KeyError:
            raise AttributeError(target) from None


class Replay:
    """One suspect, ready to draft."""

    def __init__(
        self, suspect: Suspect, weights: Mapping[str, Tensor], texts: Sequence[Text]
    ) -> None:
        """Build the module; the weights are shared, not copied.

        Args:
            suspect: what is changed.
            weights: of the drafter, by name, without rotary tables.
            texts: with the states of every layer the suspect taps.
        """
        rows = max(len(text.ids) for text in texts) + suspect.spec.block_size + 1
        self._suspect = suspect
        self._texts = texts
        module = build_module(suspect, weights, rows)
        self._rounds = ReferenceRounds(module, Precision.FP32, rows)

    def accepted(self) -> Iterator[list[int]]:
        """Yield, text by text, how many drafts the target would keep in each recorded round."""
        for text in self._texts:
            starts = (0, *text.anchors)
            yield [self._draft(text, a, b) for a, b in pairwise(starts)]

    def walk(self) -> list[list[int]]:
        """Return the same for the rounds that a decoding with this suspect would consist of."""
        found = []
        for text in self._texts:
            counts: list[int] = []
            length, anchor = 0, text.num_prompt
            while anchor + self._suspect.spec.block_size < len(text.ids):
                counts.append(self._draft(text, length, anchor))
                length, anchor = anchor, anchor + counts[-1] + 1
            found.append(counts)
        return found

    def _draft(self, text: Text, length: int, anchor: int) -> int:
        """Draft behind an anchor, the context cached up to ``length``; return how many are kept."""
        spec = self._suspect.spec
        features = text.features(spec.target_layer_ids, self._suspect.normed, length, anchor)
        outputs = self._rounds.run(
            {
                ANCHOR: np.array([text.ids[anchor]], np.int64),
                TARGET_HIDDEN: features,
                CONTEXT_LENGTH: np.array([length], np.int64),
            }
        )
        return text.num_matching(anchor, outputs[DRAFT_IDS][0])


def build_module(suspect: Suspect, weights: Mapping[str, Tensor], rows: int) -> Drafter:
    """Return the PyTorch module of a suspect.

    Args:
        suspect: what is changed.
        weights: of the drafter, by name, without rotary tables.
        rows: positions that the rotary tables are made for.
    """
    import torch

    from draftrt.export.models import rope
    from draftrt.export.models.drafter import Drafter

    spec, shift = suspect.spec, suspect.shift
    tables = rope.table_tensors(spec.rope, rows)
    made = {name: torch.from_numpy(table) for name, table in tables.items()}
    tensors = Held({**weights, **made})
    if not shift:
        return Drafter(spec, tensors)

    class Shifted(Drafter):
        """The drafter with its block moved against the context; who sees whom is unchanged."""

        def _angles(self, positions: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
            context, block = positions[: -spec.block_size], positions[-spec.block_size :]
            return super()._angles(torch.cat((context, block + shift)), valid)

    return Shifted(spec, tensors)
