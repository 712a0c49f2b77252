"""A dense decoder target as one function of ids, lengths and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.export.models import gemma4, ops, rope
from draftrt.export.models.architectures import muse_glimmer, qwen3_5, short_conv
from draftrt.export.models.architectures.carried import Carried, carried_rows
from draftrt.export.models.attention import View, attended, mask_of
from draftrt.export.models.ops import gated_mlp
from draftrt.export.models.shapes import kinds_of_layers, rope_of, stateful
from draftrt.export.models.signature import BLOCK_ROWS, NUM_STATES
from draftrt.export.models.weights import Root, Weights, register
from draftrt.spec import DecoderSpec, LayerSpec, Profile


class Decoder(nn.Module):
    """Tapped hidden states of new tokens, greedy ids and logits behind some, over fixed caches.

    Attributes:
        spec: the layers.
        taps: decoder layers whose outputs are returned, 0-based; -1 is the embedding output.

    With ``with_states`` the residual streams before, between and after the layers, [R, H] float32
    each, come behind the caches.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: Mapping[str, Tensor] | Root,
        *,
        taps: tuple[int, ...] = (),
        profile: Profile = Profile.FIXED,
        with_states: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.taps = taps
        self._with_states = with_states
        self._profile = profile
        self._weights = register(self, tensors)

    def forward(
        self, input_ids: Tensor, context_length: Tensor, logit_rows: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        """Run new tokens through the target.

        Args:
            input_ids: [1, R] int64; position of the first is ``context_length``.
            context_length: [1] int64, cache rows committed before this call.
            logit_rows: [S] int64, rows of this call whose next token is asked for, each 0 to
                R - 1, in any order.
            caches: for each layer keys and values, [1, G, L, D] each. With states: ``commit_rows``
                [1] int64, then for each layer keys and values or its states, then
                ``carried_from`` [1] int64.

        Returns:
            ``next_ids`` [1, S] int64, ``logits`` [1, S, V] float32, with taps ``features``
            [1, R, m * H] float32 in the order of the taps, then the caches with R rows written.
        """
        spec, w = self.spec, self._weights
        rows, call = input_ids.shape[1], None
        if (held := stateful(spec)) is not None:
            commit, place = caches[0], caches[-1]
            caches = caches[1:-1]
            call = carried_rows(
                context_length,
                commit,
                place,
                rows=rows,
                capacity=held.carried_rows,
                most_rows=1 if spec.delta is None else BLOCK_ROWS,  # only they are halved
            )
        of_layers = self._of_layers(caches)
        views, masks = self._views(rows, context_length, self._capacity(of_layers))
        x = F.embedding(input_ids[0], w("model.embed_tokens.weight")).float()
        if spec.gemma4 is not None:
            x = x * spec.gemma4.embedding_scale
        if spec.muse is not None:
            x = ops.rms_norm(x, None, spec.rms_norm_eps)
        states = {-1: x}
        written: list[Tensor] = []
        for index, (kind, own) in enumerate(zip(kinds_of_layers(spec), of_layers, strict=True)):
            window = spec.windows[index]
            state = call if kind in NUM_STATES else None
            x, after = self._advance(index, x, views[window], masks.get(window), state, own)
            written += after
            states[index] = x
        logits = self._logits(x.index_select(0, logit_rows))
        out = [logits.argmax(dim=-1)[None], logits[None]]
        if self.taps:
            out.append(torch.cat([states[tap] for tap in self.taps], dim=-1)[None])
        if call is not None:
            written.append(call.first)
        return (*out, *written, *states.values()) if self._with_states else (*out, *written)

    def _advance(
        self,
        index: int,
        x: Tensor,
        view: View,
        mask: Tensor | None,
        call: Carried | None,
        caches: Sequence[Tensor],
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the residual stream behind a layer, and its caches after the call."""
        spec, layer = self.spec, self._weights.below(f"model.layers.{index}")
        if spec.delta is not None:
            return qwen3_5.advance(spec, layer, x, view, call, caches, self._profile)
        if call is not None:
            u = ops.rms_norm(x, layer("input_layernorm.weight"), spec.rms_norm_eps)
            mixed, caches = short_conv.mix(layer.below("conv"), u, call, caches)
            x = x + mixed
            return x + self._mlp(layer, x), caches
        keys, values = caches
        if spec.gemma4 is not None:
            x, keys, values = gemma4.advance(
                spec, spec.gemma4, layer, x, view, mask, keys, values, self._profile
            )
        elif spec.muse is not None:
            x, keys, values = muse_glimmer.advance(
                spec, spec.muse, layer, x, view, mask, keys, values, self._profile
            )
        else:
            attended, keys, values = self._attention(layer, x, view, mask, keys, values)
            x = x + attended
            x = x + self._mlp(layer, x)
        return x, (keys, values)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return the logits [S, V] float32 behind rows [S, H] of the residual stream."""
        spec, w = self.spec, self._weights
        norm = ops.rms_norm if spec.delta is None else ops.offset_norm
        hidden = norm(rows, w("model.norm.weight"), spec.rms_norm_eps)
        head = w.get("lm_head.weight")  # quantised, a shared one is stored apart from its table
        logits = ops.linear(
            hidden, w("model.embed_tokens.weight") if head is None else head
        ).float()
        if spec.muse is not None:
            logits = logits * spec.muse.output_multiplier
        capped = spec.gemma4 or spec.muse
        cap = None if capped is None else capped.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _of_layers(self, caches: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return the caches of each layer: keys and values, or its states."""
        found, start = [], 0
        for kind in kinds_of_layers(self.spec):
            count = NUM_STATES[kind] if isinstance(kind, str) else 2
            found.append(caches[start : start + count])
            start += count
        return found

    def _capacity(self, caches: Sequence[Sequence[Tensor]]) -> int:
        """Return the rows of a cache; 1 where no layer has one."""
        sizes = [
            own[0].shape[2]
            for kind, own in zip(kinds_of_layers(self.spec), caches, strict=True)
            if kind not in NUM_STATES
        ]
        return sizes[0] if sizes else 1

    def _views(
        self, rows: int, context_length: Tensor, capacity: int
    ) -> tuple[dict[int | None, View], dict[int | None, Tensor]]:
        """Return the call as layers of each window see it, and the masks of sliding ones."""
        positions = torch.arange(rows, device=context_length.device) + context_length
        valid = context_length + rows
        angles: dict[str, tuple[Tensor, Tensor]] = {}
        views: dict[int | None, View] = {}
        masks: dict[int | None, Tensor] = {}
        for window in dict.fromkeys(self.spec.windows):
            embedding, prefix = rope_of(self.spec, window)
            if prefix not in angles:
                angles[prefix] = rope.rows(embedding, self._weights, positions, valid, prefix)
            views[window] = View(context_length, valid, rows, positions, *angles[prefix], {})
            if window is not None:
                rule = LayerSpec(is_causal=True, window=window)
                masks[window] = mask_of(rule, positions, capacity)
        return views, masks

    def _attention(
        self,
        layer: Weights,
        x: Tensor,
        view: View,
        mask: Tensor | None,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec, w, eps = self.spec, layer.below("self_attn"), self.spec.rms_norm_eps
        u = ops.rms_norm(x, layer("input_layernorm.weight"), eps)
        heads = {}
        for name, count in (
            ("q", spec.num_heads),
            ("k", spec.num_kv_heads),
            ("v", spec.num_kv_heads),
        ):
            rows = ops.linear(u, w(f"{name}_proj.weight"), w.get(f"{name}_proj.bias"))
            heads[name] = rows.reshape(1, -1, count, spec.head_dim)
        rotated = {}
        interleaved = spec.rope.layout.value == "interleaved"
        for name in ("q", "k"):
            part = heads[name]
            if spec.qk_norm:
                part = ops.rms_norm(part, w(f"{name}_norm.weight"), eps)
            part = part.float().transpose(1, 2)  # [1, N or G, R, D]
            rotated[name] = ops.rotate(
                part, view.cos, view.sin, interleaved=interleaved, profile=self._profile
            ).to(keys.dtype)
        keys = ops.write_cache(keys, rotated["k"], view.start, self._profile)
        new_values = heads["v"].to(values.dtype).transpose(1, 2)
        values = ops.write_cache(values, new_values, view.start, self._profile)
        scale = spec.head_dim**-0.5
        out = attended(view, mask, rotated["q"], keys, values, self._profile, scale=scale)
        out = ops.linear_to_residual(out, w("o_proj.weight"), w.get("o_proj.bias"))
        return out, keys, values

    def _mlp(self, layer: Weights, x: Tensor) -> Tensor:
        u = ops.rms_norm(x, layer("post_attention_layernorm.weight"), self.spec.rms_norm_eps)
        return gated_mlp(u, layer.below("mlp"), self.spec.activation)
