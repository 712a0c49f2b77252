"""The drafter as one function of ids, features, lengths and caches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.export import ops, rope
from draftrt.export.families import BACKBONES, FAMILIES
from draftrt.export.ops import Profile
from draftrt.export.view import View, mask_of, needs_mask
from draftrt.export.weights import register
from draftrt.export.yields import Yield, to_target_ids
from draftrt.spec import DrafterSpec

EXTRA_OUTPUTS = ("hidden", "base_logits", "logits", "draft_vocab_ids", "candidates")


class Drafter(nn.Module):
    """A whole proposal: anchor and new target features in, target-vocabulary draft ids out.

    Attributes:
        spec: what it computes.
        outputs: names of the outputs before the caches, in order.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        tensors: Mapping[str, Tensor],
        *,
        profile: Profile = Profile.FIXED,
        extra_outputs: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.spec = spec
        self.outputs = output_names(spec, extra_outputs)
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
        spec, w = self.spec, self._weights
        view = self._view(target_hidden.shape[1], context_length, caches[0].shape[2])
        context = ops.linear(target_hidden[0], w("fc.weight")).float()
        context = ops.rms_norm(context, w("hidden_norm.weight"), spec.rms_norm_eps)
        x = self._embed(anchor)
        written: list[Tensor] = []
        for layer, keys, values in zip(self._layers, caches[::2], caches[1::2], strict=True):
            x, keys, values = layer(x, context, view, keys, values)
            written += (keys, values)
        hidden = ops.rms_norm(x, w("norm.weight"), spec.rms_norm_eps)
        hidden = hidden[spec.block_size - spec.num_draft_tokens :]
        rows = Yield(anchor, hidden, self._logits(hidden))
        named = FAMILIES[spec.family].propose(spec, w, rows)
        named["draft_ids"] = to_target_ids(spec, w, named["draft_vocab_ids"])
        named |= {"hidden": hidden, "base_logits": rows.base_logits}
        return (*(named[name][None] for name in self.outputs), *written)

    def _view(self, new_rows: int, context_length: Tensor, capacity: int) -> View:
        spec = self.spec
        rows = new_rows + spec.block_size
        positions = torch.arange(rows, device=context_length.device) + context_length
        valid = context_length + rows
        cos, sin = rope.rows(spec.rope, self._weights, positions, valid)
        masks = {
            rule: mask_of(rule, positions, spec.block_size, capacity)
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


def output_names(spec: DrafterSpec, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the outputs before the caches, in graph order, without extras the family lacks."""
    names = ["draft_ids"] + (["confidence"] if spec.confidence is not None else [])
    has = set(EXTRA_OUTPUTS) - (set() if spec.selector is not None else {"candidates"})
    return (*names, *(name for name in EXTRA_OUTPUTS if name in extra and name in has))
