"""The drafter as one function of ids, features, lengths and caches; its families and backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.export.models import gemma4, heads, ops, qwen3, rope
from draftrt.export.models.attention import View, mask_of, needs_mask
from draftrt.export.models.heads import DraftRows, Noise, to_target_ids
from draftrt.export.models.signature import SAMPLED_INPUTS, output_names
from draftrt.export.models.weights import Root, Weights, register
from draftrt.spec import Backbone, DrafterSpec, Family, Profile


class Drafter(nn.Module):
    """A whole proposal: anchor and new target features in, target-vocabulary draft ids out.

    Attributes:
        spec: what it computes.
        inputs: names of the inputs before the caches, in order.
        outputs: names of the outputs before the caches, in order.

    With ``with_states`` the residual streams before, between and after the layers, [K, H] float32
    each, come behind the caches.
    """

    inputs: tuple[str, ...] = ("anchor", "target_hidden", "context_length")
    is_sampled = False

    def __init__(
        self,
        spec: DrafterSpec,
        tensors: Mapping[str, Tensor] | Root,
        *,
        profile: Profile = Profile.FIXED,
        extra_outputs: tuple[str, ...] = (),
        with_states: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._with_states = with_states
        self.outputs = output_names(spec, extra_outputs, is_sampled=self.is_sampled)
        self._profile = profile
        self._weights = register(self, tensors)
        layer = BACKBONES[spec.backbone].layer
        self._layers = [
            layer(spec, rule, self._weights.below(f"layers.{index}"), profile)
            for index, rule in enumerate(spec.layers)
        ]

    def forward(
        self, anchor: Tensor, target_hidden: Tensor, context_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """Draft one block.

        Args:
            anchor: [1] int64, the last committed token; its position is context_length + T.
            target_hidden: [1, T, m * H_t] float32, features of the tokens committed since the last
                call, concatenated in the order of ``target_layer_ids``.
            context_length: [1] int64, cache rows committed before this call.
            caches: for each layer keys and values, [1, G, L, D] each.

        Returns:
            The outputs named by `outputs`, then the caches with T + K rows written from
            ``context_length`` on, of which the caller keeps the first T.
        """
        return self._draft(anchor, target_hidden, context_length, None, caches)

    def _draft(
        self,
        anchor: Tensor,
        target_hidden: Tensor,
        context_length: Tensor,
        noise: Noise | None,
        caches: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        spec, w = self.spec, self._weights
        view = self._view(target_hidden.shape[1], context_length, caches[0].shape[2])
        context = ops.linear(target_hidden[0], w("fc.weight")).float()
        context = ops.rms_norm(context, w("hidden_norm.weight"), spec.rms_norm_eps)
        x = self._embed(anchor)
        written: list[Tensor] = []
        states = [x]
        for layer, keys, values in zip(self._layers, caches[::2], caches[1::2], strict=True):
            x, keys, values = layer(x, context, view, keys, values)
            written += (keys, values)
            states.append(x)
        hidden = ops.rms_norm(x, w("norm.weight"), spec.rms_norm_eps)
        hidden = hidden[spec.block_size - spec.num_draft_tokens :]
        rows = DraftRows(anchor, hidden, self._logits(hidden), noise)
        named = FAMILIES[spec.family].propose(spec, w, rows)
        named["draft_ids"] = to_target_ids(spec, w, named["draft_vocab_ids"])
        named |= {"hidden": hidden, "base_logits": rows.base_logits}
        if "candidate_ids" in self.outputs:
            ids = named["candidate_ids"]
            named["candidate_ids"] = to_target_ids(spec, w, ids.flatten()).reshape(ids.shape)
        if "vocabulary_ids" in self.outputs:
            columns = torch.arange(rows.base_logits.shape[1], device=anchor.device)
            named["vocabulary_ids"] = to_target_ids(spec, w, columns)
        outputs = (*(named[name][None] for name in self.outputs), *written)
        return (*outputs, *states) if self._with_states else outputs

    def _view(self, new_rows: int, context_length: Tensor, capacity: int) -> View:
        spec = self.spec
        rows = new_rows + spec.block_size
        positions = torch.arange(rows, device=context_length.device) + context_length
        valid = context_length + rows
        cos, sin = rope.rows(spec.rope, self._weights, positions, valid)
        masks = {
            rule: mask_of(rule, positions[-spec.block_size :], capacity)
            for rule in dict.fromkeys(spec.layers)
            if needs_mask(rule)
        }
        return View(context_length, valid, spec.block_size, positions, cos, sin, masks)

    def _embed(self, anchor: Tensor) -> Tensor:
        """Embed the block [anchor, mask, mask, ...] as [K, H] float32."""
        spec, w = self.spec, self._weights
        filler = torch.full(
            (spec.block_size - 1,), spec.mask_token_id, dtype=torch.int64, device=anchor.device
        )
        ids = torch.cat((anchor, filler))
        if spec.mask_embedding:  # the mask id need not be in the table
            is_mask = ids == spec.mask_token_id
            ids = ids.masked_fill(is_mask, 0)
            x = F.embedding(ids, w("embed_tokens.weight")).float()
            x = torch.where(is_mask[:, None], w("mask_embedding"), x)
        else:
            x = F.embedding(ids, w("embed_tokens.weight")).float()
        return x if spec.embedding_scale == 1.0 else x * spec.embedding_scale

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V'] float32 of the rows that yield drafts."""
        logits = ops.linear(hidden, self._weights("lm_head.weight")).float()
        if self.spec.output_multiplier != 1.0:
            logits = logits * self.spec.output_multiplier
        cap = self.spec.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


class SampledDrafter(Drafter):
    """A `Drafter` whose choices are draws, by noise that the caller supplies.

    Its further outputs say what each draft was drawn from, given the drafts before it: ``logits``
    over the draft vocabulary, with the target ids of its columns where it is a reduced one, or with
    a selector ``candidate_ids`` and ``candidate_scores``.
    """

    inputs = (*Drafter.inputs, *SAMPLED_INPUTS)
    is_sampled = True

    def forward(  # type: ignore[override]
        self,
        anchor: Tensor,
        target_hidden: Tensor,
        context_length: Tensor,
        noise: Tensor,
        inverse_temperature: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        """Draft one block; see `Drafter.forward`.

        Args:
            anchor: [1] int64.
            target_hidden: [1, T, m * H_t] float32.
            context_length: [1] int64.
            noise: [1, n, W] float32, Gumbel noise, or zero for the greedy choice. W is V' = min(Vd,
                V), or top_k with a selector.
            inverse_temperature: [1] float32, factor on the scores; one for the greedy choice.
            caches: for each layer keys and values, [1, G, L, D] each.
        """
        walk = Noise(noise[0], inverse_temperature)
        return self._draft(anchor, target_hidden, context_length, walk, caches)


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """How a family drafts; its head's tensors stand in `draftrt.export.models.shapes`."""

    propose: Callable[[DrafterSpec, Weights, DraftRows], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class BackboneEntry:
    """A backbone's layer; its tensors stand in `draftrt.export.models.shapes`."""

    layer: Callable[..., Any]


FAMILIES = {
    Family.DFLASH: FamilyEntry(heads.propose_dflash),
    Family.DFLASH2: FamilyEntry(heads.propose_dflash2),
    Family.DSPARK: FamilyEntry(heads.propose_dspark),
}
BACKBONES = {
    Backbone.QWEN3: BackboneEntry(qwen3.Qwen3Layer),
    Backbone.GEMMA4: BackboneEntry(gemma4.Gemma4Layer),
}
