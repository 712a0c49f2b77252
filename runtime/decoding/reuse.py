"""What the caches of a target and a drafter still hold of the texts before, for the next prompt.

A prompt that begins as the text before it, as every further turn of a chat does, needs only its new
tokens computed. Target and drafter are looked at one by one: a text that was decoded plainly leaves
the drafter's context of an earlier one in place. The drafter needs the features of every token that
its cache lacks, so the target starts where both can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.targets.base import Target
from draftrt.runtime.targets.snapshots import common_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A sequence up to its last committed token, the anchor.

    Attributes:
        token_ids: prompt and text; the target caches all but the last.
        context_length: how many of them the drafter caches.
        features: [1, T, m*H_t] float32, features of the T tokens behind those, up to the anchor.
        num_rounds: rounds done, the prefill's included.
        generation: number under which both caches were claimed for it.
    """

    token_ids: tuple[int, ...]
    context_length: int
    features: NDArray[np.float32]
    num_rounds: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the computing of a prompt begins.

    Attributes:
        length: tokens of the prompt that the target need not compute.
        shared: tokens that the prompt has in common with the text before, as many or more.
        context_length: tokens whose context the drafter has.
        features: [1, T, m*H_t] float32, those of the tokens between the two lengths.
    """

    length: int
    shared: int
    context_length: int
    features: NDArray[np.float32]

    @classmethod
    def cold(cls, target: Target) -> Start:
        """Return the start of a prompt of which nothing is held."""
        nothing = np.zeros((1, 0, target.feature_size), np.float32)
        return cls(length=0, shared=0, context_length=0, features=nothing)


class Holdings:
    """The sequences that the caches hold, as the loops of one pair note them down.

    A note is good for as long as the model has its generation: who else claims a cache, or begins a
    text in it by hand, ends that.
    """

    def __init__(self) -> None:
        self._target: Committed | None = None
        self._drafter: Committed | None = None

    def note(self, now: Committed, drafter: DraftSession | None) -> None:
        """Take note of what the target holds now, and the drafter where it takes part."""
        self._target = now
        if drafter is not None:
            self._drafter = now

    def noted(
        self, target: Target, drafter: DraftSession | None
    ) -> tuple[Committed | None, Committed | None]:
        """Return the text that the target holds, and the drafter where it holds the same one."""
        now, drafted = self._target, self._drafter
        if now is None or now.generation != target.generation:
            return None, None
        if drafter is None or drafted is not now or drafted.generation != drafter.generation:
            return now, None
        return now, drafted

    def start(
        self, prompt_ids: Sequence[int], target: Target, drafter: DraftSession | None
    ) -> Start:
        """Return where a prompt can begin, with the target rolled back to there.

        At least one token is left: the target answers behind tokens that it is fed.
        """
        last = self._target
        if last is None or last.generation != target.generation:
            target.rollback(0)
            return Start.cold(target)
        target.rollback(common_length(last.token_ids[:-1], prompt_ids[:-1]))
        shared = covered = target.length
        target.keep()
        context = Context(self._drafter, drafter, prompt_ids)
        if drafter is not None:
            covered = min(shared, context.covered)
        length = target.reach(covered)
        target.rollback(length)
        if length == 0:
            return Start.cold(target)
        return Start(
            length=length,
            shared=shared,
            context_length=min(context.length, length),
            features=context.features[:, : max(length - context.length, 0)],
        )


class Context:
    """What a drafter has of a prompt.

    Attributes:
        length: tokens that its cache holds.
        features: [1, T, m*H_t] float32, of tokens behind those.
        covered: tokens for which there is one or the other.
    """

    def __init__(
        self, noted: Committed | None, drafter: DraftSession | None, prompt_ids: Sequence[int]
    ) -> None:
        self.length = self.covered = 0
        self.features = np.zeros((1, 0, 0), np.float32)
        if noted is None or drafter is None or noted.generation != drafter.generation:
            return
        known = noted.context_length + noted.features.shape[1]
        if drafter.context_length < noted.context_length:  # cropped by hand since
            known = drafter.context_length
        self.covered = common_length(noted.token_ids[:known], prompt_ids)
        self.length = min(noted.context_length, self.covered)
        self.features = noted.features
