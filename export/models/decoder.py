"""A dense decoder target as one function of ids, lengths and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftrt.export.models import gemma4, ops, qwen3, rope
from draftrt.export.models.architectures import muse_glimmer, qwen3_5, short_conv
from draftrt.export.models.architectures.carried import Carried, carried_rows
from draftrt.export.models.attention import Caches, View, mask_of
from draftrt.export.models.shapes import kinds_of_layers, rope_of, stateful
from draftrt.export.models.signature import BLOCK_ROWS, NUM_STATES
from draftrt.export.models.weights import Root, Weights, register
from draftrt.export.tracing import names
from draftrt.spec import DecoderSpec, LayerSpec, Profile, RopeLayout


class Decoder(nn.Module):
    """Tapped hidden states of new tokens, greedy ids and logits behind some, over fixed caches.

    Attributes:
        spec: the layers.
        taps: decoder layers whose outputs are returned, 0-based; -1 is the embedding output.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: Mapping[str, Tensor] | Root,
        *,
        taps: tuple[int, ...] = (),
        profile: Profile = Profile.FIXED,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.taps = taps
        self._profile = profile
        self._root = register(self, tensors)
        self._weights = self._root.below("model")

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
        spec, rows, call = self.spec, input_ids.shape[1], None
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
        views = self._views(rows, context_length, self._capacity(of_layers))
        x = self._embed(input_ids[0])
        states = {-1: x}
        written: list[Tensor] = []
        for index, (kind, own) in enumerate(zip(kinds_of_layers(spec), of_layers, strict=True)):
            state = call if kind in NUM_STATES else None
            with self._weights.inside(f"layers.{index}") as w:
                x, after = self._advance(w, x, views[spec.windows[index]], state, own)
                x = w.name(x, names.OUTPUT)
            written += after
            states[index] = x
        logits = self._logits(x.index_select(0, logit_rows))
        out = [names.name(logits.argmax(dim=-1), names.CHOICE, logits)[None], logits[None]]
        if self.taps:
            out.append(torch.cat([states[tap] for tap in self.taps], dim=-1)[None])
        return (*out, *written) if call is None else (*out, *written, call.first)

    def _embed(self, ids: Tensor) -> Tensor:
        """Return the residual stream [R, H] float32 before the first layer."""
        spec = self.spec
        with self._weights.inside("embed_tokens") as w:
            x = F.embedding(ids, w("weight")).float()
            if spec.gemma4 is not None:
                x = x * spec.gemma4.embedding_scale
            if spec.muse is not None:
                x = F.rms_norm(x, (x.shape[-1],), None, spec.rms_norm_eps)
            return w.name(x, names.OUTPUT, into=ids)

    def _advance(
        self, w: Weights, x: Tensor, view: View, call: Carried | None, caches: Caches
    ) -> tuple[Tensor, Caches]:
        """Return the residual stream behind a layer, and its caches after the call."""
        spec = self.spec
        if spec.delta is not None:
            return qwen3_5.advance(spec, w, x, view, call, caches)
        if call is not None:
            return short_conv.advance(spec, w, x, call, caches)
        if spec.gemma4 is not None:
            return gemma4.advance(spec, w, x, view, caches)
        if spec.muse is not None:
            return muse_glimmer.advance(spec, spec.muse, w, x, view, caches)
        return qwen3.advance(spec, w, x, view, caches)

    def final_norm(self, rows: Tensor) -> Tensor:
        """Return rows [S, H] of the residual stream, normed, in float32."""
        norm = ops.rms_norm if self.spec.delta is None else ops.offset_norm
        return norm(rows, self._weights.below("norm"), self.spec.rms_norm_eps)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return the logits [S, V] float32 behind rows [S, H] of the residual stream."""
        hidden = self.final_norm(rows)
        head = self._root.below("lm_head")
        table = self._weights.below("embed_tokens")  # quantised, a shared one has a head beside it
        logits = ops.linear(hidden, table if head.get("weight") is None else head, path=head.path)
        with head.inside():
            return head.name(self._capped(logits.float()), names.OUTPUT)

    def _capped(self, logits: Tensor) -> Tensor:
        spec = self.spec
        if spec.muse is not None:
            logits = logits * spec.muse.output_multiplier
        capped = spec.gemma4 or spec.muse
        cap = None if capped is None else capped.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _of_layers(self, caches: Sequence[Tensor]) -> list[Caches]:
        """Return the caches of each layer: keys and values, or its states."""
        found, start = [], 0
        for kind in kinds_of_layers(self.spec):
            count = NUM_STATES[kind] if isinstance(kind, str) else 2
            found.append(tuple(caches[start : start + count]))
            start += count
        return found

    def _capacity(self, caches: Sequence[Caches]) -> int:
        """Return the rows of a cache; 1 where no layer has one."""
        sizes = [
            own[0].shape[2]
            for kind, own in zip(kinds_of_layers(self.spec), caches, strict=True)
            if kind not in NUM_STATES
        ]
        return sizes[0] if sizes else 1

    def _views(self, rows: int, context_length: Tensor, capacity: int) -> dict[int | None, View]:
        """Return the call as layers of each window see it."""
        positions = torch.arange(rows, device=context_length.device) + context_length
        valid = names.name(context_length + rows, "valid")
        angles: dict[str, tuple[Tensor, Tensor]] = {}
        views: dict[int | None, View] = {}
        for window in dict.fromkeys(self.spec.windows):
            embedding, prefix = rope_of(self.spec, window)
            if prefix not in angles:
                angles[prefix] = rope.rows(embedding, self._root, positions, valid, prefix)
            cos, sin = angles[prefix]
            rule = LayerSpec(is_causal=True, window=window)
            views[window] = View(
                start=context_length,
                valid=valid,
                num_queries=None,
                cos=cos,
                sin=sin,
                interleaved=embedding.layout is RopeLayout.INTERLEAVED,
                mask=None if window is None else mask_of(rule, positions, capacity),
                is_causal=True,
                profile=self._profile,
            )
        return views
