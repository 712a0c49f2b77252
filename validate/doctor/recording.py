"""Texts of a target with what a drafter needs to be replayed over them, recorded once.

The runtime decodes, which is the measurement itself; the hidden states are taken afterwards, all
tokens of a text at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.errors import FeedError
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import find_target
from draftrt.runtime.pair import Pair
from draftrt.runtime.targets.huggingface import HfTarget
from draftrt.spec import DrafterSpec

if TYPE_CHECKING:
    from draftrt.export.models.decoder import Decoder


MIN_TEXTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One decoded prompt.

    Attributes:
        ids: prompt and the target's own continuation.
        num_prompt: how many of them are the prompt.
        anchors: index of the anchor of every drafted round.
        drafted: drafts of the same rounds.
        accepted: drafts the runtime kept in them.
        states: decoder layer to its output [len(ids), H_t] float32; -1 the embedding output.
        normed: the same behind the target's final norm.
    """

    ids: tuple[int, ...]
    num_prompt: int
    anchors: tuple[int, ...]
    drafted: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    states: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    normed: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    def features(
        self, taps: Sequence[int], normed: frozenset[int], start: int, end: int
    ) -> NDArray[np.float32]:
        """Return the features of tokens ``start`` to ``end``, [1, end - start, m * H_t] float32.

        Args:
            taps: decoder layers in the order of concatenation.
            normed: places in ``taps`` that go through the final norm.
            start: first token.
            end: behind the last one.
        """
        parts = [
            (self.normed if place in normed else self.states)[layer][start:end]
            for place, layer in enumerate(taps)
        ]
        return np.concatenate(parts, axis=1)[None]

    def num_matching(self, anchor: int, drafts: Sequence[int] | NDArray[Any]) -> int:
        """Return how many drafts behind an anchor are the text's own tokens."""
        own = self.ids[anchor + 1 : anchor + 1 + len(drafts)]
        for count, (draft, token) in enumerate(zip(drafts, own, strict=False)):
            if int(draft) != token:
                return count
        return min(len(drafts), len(own))


def decode_texts(
    pair: Pair,
    prompts: Iterable[Sequence[int]],
    max_tokens: int,
    report: Callable[[str], None] = lambda line: None,
) -> list[Text]:
    """Decode prompts greedily through the runtime and return what the rounds did.

    Raises:
        FeedError: a prompt and the wanted tokens do not fit the caches.
    """
    texts = []
    for number, prompt in enumerate(prompts, start=1):
        ids, anchors, drafted, accepted = list(prompt), [], [], []
        for one in pair.rounds(
            prompt, DecodeOptions(max_tokens=max_tokens, schedule="all", reuse_prefix=False)
        ):
            if one.draft_ids:
                anchors.append(len(ids) - 1)
                drafted.append(one.draft_ids)
                accepted.append(one.num_accepted)
            ids += one.token_ids
        report(f"prompt {number}: {len(ids) - len(prompt)} tokens in {len(anchors)} rounds")
        texts.append(
            Text(
                ids=tuple(ids),
                num_prompt=len(prompt),
                anchors=tuple(anchors),
                drafted=tuple(drafted),
                accepted=tuple(accepted),
            )
        )
    return texts


def whole_rounds(texts: Sequence[Text], block_size: int) -> list[Text]:
    """Return the texts with the rounds alone behind which a whole block of text is known.

    Raises:
        FeedError: fewer than `MIN_TEXTS` texts have such a round.
    """
    kept = []
    for text in texts:
        count = sum(anchor + block_size < len(text.ids) for anchor in text.anchors)
        if count:
            kept.append(
                replace(
                    text,
                    anchors=text.anchors[:count],
                    drafted=text.drafted[:count],
                    accepted=text.accepted[:count],
                )
            )
    if len(kept) < MIN_TEXTS:
        raise FeedError(
            f"{len(kept)} of {len(texts)} texts have a round with a whole block of {block_size} "
            f"tokens behind it, expected at least {MIN_TEXTS}",
            hint="give more prompts, or a larger --max-tokens",
        )
    return kept


def layers_needed(spec: DrafterSpec, num_layers: int, others: Iterable[int] = ()) -> list[int]:
    """Return the layers whose outputs the suspects look at: the taps and their neighbours."""
    near = {k + step for k in (*spec.target_layer_ids, *others) for step in (-1, 0, 1)}
    return sorted(k for k in near if -1 <= k < num_layers)


def with_states(text: Text, states: States, layers: Sequence[int]) -> Text:
    """Return the text with hidden states of the given layers, raw and final-normed."""
    raw = states.run(text.ids)
    width = raw.shape[2] // len(layers)
    split = {
        layer: np.ascontiguousarray(raw[0, :, place * width : (place + 1) * width])
        for place, layer in enumerate(layers)
    }
    normed = {layer: states.final_norm(array) for layer, array in split.items()}
    return replace(text, states=split, normed=normed)


class States(Protocol):
    """Something that gives hidden states of a text."""

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the outputs of the tapped layers, [1, T, m * H_t] float32."""

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states [T, H_t] behind the target's final norm."""


class HfStates:
    """The states of a Hugging Face model."""

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        self._target = HfTarget(folder, layers)

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of a text; see `States.run`."""
        self._target.rollback(0)
        return self._target.prefill(np.asarray(token_ids, np.int64)).features

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Norm hidden states; see `States.final_norm`."""
        return self._target.final_norm(rows)


class ModuleStates:
    """The states of the PyTorch module behind a bundle's target graph, in float32."""

    def __init__(self, module: Decoder) -> None:
        self._module = module

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of a text; see `States.run`."""
        import torch

        spec, caches = self._module.spec, []
        for layer in range(spec.num_layers):
            groups, dim = spec.cache_shape(layer)
            caches += [torch.zeros(1, groups, len(token_ids), dim) for _ in range(2)]
        ids, start = torch.tensor([list(token_ids)]), torch.zeros(1, dtype=torch.int64)
        last = torch.tensor([len(token_ids) - 1])
        with torch.no_grad():
            features: NDArray[np.float32] = self._module(ids, start, last, *caches)[2].numpy()
        return features

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Norm hidden states; see `States.final_norm`."""
        import torch

        with torch.no_grad():
            normed = self._module.final_norm(torch.from_numpy(rows))
        array: NDArray[np.float32] = normed.numpy()
        return array


def open_states(bundle: Bundle, target: Path | None, layers: Sequence[int]) -> States:
    """Return what gives the states: the target's folder where one is given, else the bundle's own.

    Raises:
        BackendError: the bundle has no target graph, and no folder is given or remembered.
        SpecError: the folder holds another target than the bundle was exported for.
    """
    if target is None and bundle.manifest.decoder is not None:
        from draftrt.export.check.reference import decoder_from_bundle

        return ModuleStates(decoder_from_bundle(bundle, tuple(layers)))
    return HfStates(find_target(bundle, target), layers)
