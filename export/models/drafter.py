"""The drafter as one function of ids, features, lengths and caches; its families and backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.export.models import gemma4, heads, ops, qwen3, rope
from draftrt.export.models.attention import Caches, View, mask_of, needs_mask
from draftrt.export.models.heads import DraftRows, Noise, to_target_ids
from draftrt.export.models.signature import SAMPLED_INPUTS, output_names
from draftrt.export.models.weights import Root, Weights, register
from draftrt.export.tracing import names
from draftrt.spec import Backbone, DrafterSpec, Family, LayerSpec, Profile, RopeLayout


class Drafter(nn.Module):
    """A whole proposal: anchor and new target features in, target-vocabulary draft ids out.

    Attributes:
        spec: what it computes.
        inputs: names of the inputs before the caches, in order.
        outputs: names of the outputs before the caches, in order.
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
    ) -> None:
        super().__init__()
        self.spec = spec
        self.outputs = output_names(spec, extra_outputs, is_sampled=self.is_sampled)
        self._profile = profile
        self._weights = register(self, tensors)

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
        context = ops.linear(target_hidden[0], w.below("fc")).float()
        context = ops.rms_norm(context, w.below("hidden_norm"), spec.rms_norm_eps)
        views = self._views(context, context_length, caches[0].shape[2])
        x = self._embed(anchor)
        written: list[Tensor] = []
        advance = BACKBONES[spec.backbone].advance
        pairs = zip(spec.layers, caches[::2], caches[1::2], strict=True)
        for index, (rule, *own) in enumerate(pairs):
            with w.inside(f"layers.{index}") as layer:
                x, after = advance(spec, layer, x, views[rule], tuple(own))
                x = layer.name(x, names.OUTPUT)
            written += after
        hidden = ops.rms_norm(x, w.below("norm"), spec.rms_norm_eps)
        hidden = hidden[spec.block_size - spec.num_draft_tokens :]
        hidden = names.name(hidden, names.HIDDEN)
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
        return (*(named[name][None] for name in self.outputs), *written)

    def _views(
        self, context: Tensor, context_length: Tensor, capacity: int
    ) -> dict[LayerSpec, View]:
        """Return the call as layers of each visibility rule see it."""
        spec = self.spec
        rows = context.shape[0] + spec.block_size
        positions = torch.arange(rows, device=context_length.device) + context_length
        valid = names.name(context_length + rows, "valid")
        cos, sin = self._angles(positions, valid)
        return {
            rule: View(
                start=context_length,
                valid=valid,
                num_queries=spec.block_size,
                cos=cos,
                sin=sin,
                interleaved=spec.rope.layout is RopeLayout.INTERLEAVED,
                mask=mask_of(rule, positions[-spec.block_size :], capacity)
                if needs_mask(rule)
                else None,
                is_causal=False,
                profile=self._profile,
                context=context,
            )
            for rule in dict.fromkeys(spec.layers)
        }

    def _angles(self, positions: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the context's rows and the block's."""
        return rope.rows(self.spec.rope, self._weights, positions, valid)

    def _embed(self, anchor: Tensor) -> Tensor:
        """Embed the block [anchor, mask, mask, ...] as [K, H] float32."""
        spec, w = self.spec, self._weights
        filler = torch.full(
            (spec.block_size - 1,), spec.mask_token_id, dtype=torch.int64, device=anchor.device
        )
        ids = torch.cat((anchor, filler))
        with w.inside("embed_tokens") as table:
            is_mask = ids == spec.mask_token_id if spec.mask_embedding else None
            if is_mask is not None:  # the mask id need not be in the table
                ids = ids.masked_fill(is_mask, 0)
            x = F.embedding(ids, table("weight")).float()
            if is_mask is not None:
                x = torch.where(is_mask[:, None], w("mask_embedding"), x)
            x = x if spec.embedding_scale == 1.0 else x * spec.embedding_scale
            return table.name(x, names.OUTPUT, into=ids)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V'] float32 of the rows that yield drafts."""
        spec, cap = self.spec, self.spec.final_logit_softcapping
        head = self._weights.below("lm_head")
        logits = ops.linear(hidden, head)
        with head.inside():
            logits = logits.float()
            if spec.output_multiplier != 1.0:
                logits = logits * spec.output_multiplier
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            return head.name(logits, names.OUTPUT)


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

    advance: Callable[[DrafterSpec, Weights, Tensor, View, Caches], tuple[Tensor, Caches]]


FAMILIES = {
    Family.DFLASH: FamilyEntry(heads.propose_dflash),
    Family.DFLASH2: FamilyEntry(heads.propose_dflash2),
    Family.DSPARK: FamilyEntry(heads.propose_dspark),
}
BACKBONES = {
    Backbone.QWEN3: BackboneEntry(qwen3.advance),
    Backbone.GEMMA4: BackboneEntry(gemma4.advance),
}
