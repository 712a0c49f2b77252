"""A block drafter as the papers and publishers describe it: loops, float64, no cache, no shortcuts.

It shares nothing with the product. It gets a checkpoint's arrays and what they mean (`Meaning`,
stated by the test and read from nothing), and computes the whole prefix again for every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.parity.slow_rope import SlowRope

Array = NDArray[np.float64]
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the rows of a block see in one layer."""

    causal: bool = False
    window: int | None = None
    from_anchor: bool = False  # speculators count a window from the anchor

    def sees(self, row: int, key: int, start: int) -> bool:
        """Whether the block's row sees the key at an absolute position; the block is at start."""
        query = start + row
        if key >= start:
            if self.causal and key > query:
                return False
            if self.window is None or self.from_anchor:
                return True
            return abs(query - key) < self.window
        if self.window is None:
            return True
        if self.from_anchor:
            return key >= start - self.window
        return query - key < self.window


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a checkpoint's arrays mean."""

    family: str
    block: int
    mask_id: int
    drafts_from_row: int  # 0: from the anchor on
    rules: Sequence[Rule]
    rope: SlowRope
    num_heads: int
    num_groups: int
    head_dim: int
    eps: float = 1e-6
    is_gemma: bool = False
    key_is_value: bool = False
    embedding_scale: float = 1.0
    value_scale: float = 1.0
    multiplier: float = 1.0
    cap: float | None = None
    markov: str | None = None
    confidence_sees_markov: bool = True
    top_k: int = 0
    conv_group: int = 0
    d2t: str = "identity"
    num_drafted: int = 0  # ids from here on are padding


class SlowDrafter:
    """Drafts one sequence round by round."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], meaning: Meaning) -> None:
        self._arrays = {
            name: array.astype(np.float64) if array.dtype == np.float32 else array
            for name, array in arrays.items()
        }
        self._m = meaning
        self._features: list[Array] = []
        self._written_at: list[int] = []  # sequence length when a position's key was rotated

    def draft(self, features: NDArray[np.float32], anchor: int) -> Outputs:
        """Draft one block after T more committed tokens, features [T, m * H_t]."""
        m = self._m
        self._features += list(features.astype(np.float64))
        length = len(self._features) + m.block
        self._written_at += [length] * len(features)
        context = [
            self._norm(self._linear("fc", row), "hidden_norm.weight") for row in self._features
        ]
        x = np.stack([self._embedded(token) for token in [anchor] + [m.mask_id] * (m.block - 1)])
        for index, rule in enumerate(m.rules):
            x = self._layer(f"layers.{index}", rule, x, context, length)
        hidden = np.stack([self._norm(row, "norm.weight") for row in x])[m.drafts_from_row :]
        base = np.stack([self._logits(row) for row in hidden])
        outputs = {"hidden": hidden, "base_logits": base}
        head = {"dflash": self._plain, "dspark": self._markov, "dflash2": self._select}[m.family]
        return outputs | head(hidden, base, anchor)

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = self._arrays[f"{name}.weight"] @ x
        bias = self._arrays.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _norm(self, x: Array, weight: str | None) -> Array:
        out = x / math.sqrt(sum(value * value for value in x) / len(x) + self._m.eps)
        return out if weight is None else out * self._arrays[weight]

    def _embedded(self, token: int) -> Array:
        own = self._arrays.get("mask_embedding")
        row = self._arrays["embed_tokens.weight"][token]
        if own is not None and token == self._m.mask_id:
            row = own
        return np.asarray(row * self._m.embedding_scale)

    def _layer(self, name: str, rule: Rule, x: Array, context: list[Array], length: int) -> Array:
        if self._m.is_gemma:
            return self._gemma_layer(name, rule, x, context, length)
        u = [self._norm(row, f"{name}.input_layernorm.weight") for row in x]
        site = f"{name}.attention_conv"
        inner = self._convolve(site, u, u, side=0)
        attended = self._attend(f"{name}.self_attn", rule, inner, context, length)
        x = x + np.stack(self._convolve(site, u, attended, side=1))
        u = [self._norm(row, f"{name}.post_attention_layernorm.weight") for row in x]
        site = f"{name}.mlp_conv"
        mixed = [self._mlp(name, row) for row in self._convolve(site, u, u, side=0)]
        return x + np.stack(self._convolve(site, u, mixed, side=1))

    def _gemma_layer(
        self, name: str, rule: Rule, x: Array, context: list[Array], length: int
    ) -> Array:
        def normed(rows: Sequence[Array] | Array, which: str) -> list[Array]:
            return [self._norm(row, f"{name}.{which}_layernorm.weight") for row in rows]

        inner = normed(x, "input")
        attended = self._attend(f"{name}.self_attn", rule, inner, context, length)
        x = x + np.stack(normed(attended, "post_attention"))
        mixed = [self._mlp(name, row) for row in normed(x, "pre_feedforward")]
        x = x + np.stack(normed(mixed, "post_feedforward"))
        return np.asarray(x * self._arrays[f"{name}.layer_scalar"][0])

    def _mlp(self, name: str, row: Array) -> Array:
        gate = self._linear(f"{name}.mlp.gate_proj", row)
        if self._m.is_gemma:  # gelu, tanh form
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self._linear(
            f"{name}.mlp.down_proj", gate * self._linear(f"{name}.mlp.up_proj", row)
        )

    def _convolve(self, site: str, u: list[Array], z: list[Array], *, side: int) -> list[Array]:
        """Mix each row with the rows before it; coefficients come from u at the output row."""
        base = self._arrays.get(f"{site}.base_kernel")
        if base is None:
            return z
        taps, group = base.shape[1], self._m.conv_group
        out = []
        for i in range(len(z)):
            dynamic = self._linear(f"{site}.kernel_projection", u[i])
            dynamic = dynamic.reshape(2, taps, -1)
            row = np.zeros_like(z[i])
            for t in range(min(taps, i + 1)):
                for c in range(len(row)):
                    row[c] += (base[side, t, c] + dynamic[side, t, c // group]) * z[i - t][c]
            out.append(row)
        return out

    def _heads(self, name: str, row: Array, count: int, norm: str | None) -> list[Array]:
        parts = np.split(self._linear(name, row), count)
        return [self._norm(part, norm) if norm else part for part in parts]

    def _attend(
        self, name: str, rule: Rule, block: list[Array], context: list[Array], length: int
    ) -> list[Array]:
        m, start = self._m, len(context)
        keys, values = [], []
        for position, row in enumerate([*context, *block]):
            written = self._written_at[position] if position < start else length
            raw = self._heads(f"{name}.k_proj", row, m.num_groups, None)
            source = f"{name}.k_proj" if m.key_is_value else f"{name}.v_proj"
            value = self._heads(source, row, m.num_groups, None)
            if m.is_gemma:
                value = [self._norm(part, None) for part in value]
            normed = [self._norm(part, f"{name}.k_norm.weight") for part in raw]
            keys.append([m.rope.rotate(part, position, written) for part in normed])
            values.append([part * m.value_scale for part in value])
        scale = 1.0 if m.is_gemma else m.head_dim**-0.5
        sinks = self._arrays.get(f"{name}.attention_sink_bias")
        out = []
        for number, u in enumerate(block):
            heads = []
            queries = self._heads(f"{name}.q_proj", u, m.num_heads, f"{name}.q_norm.weight")
            for head, query in enumerate(queries):
                group = head * m.num_groups // m.num_heads
                query = m.rope.rotate(query, start + number, length)
                seen = [j for j in range(start + len(block)) if rule.sees(number, j, start)]
                scores = [scale * float(query @ keys[j][group]) for j in seen]
                sink = [] if sinks is None else [float(sinks[head])]
                peak = max(scores + sink)
                weights = [math.exp(score - peak) for score in scores]
                total = sum(weights) + sum(math.exp(score - peak) for score in sink)
                heads.append(
                    sum(w / total * values[j][group] for w, j in zip(weights, seen, strict=True))
                )
            out.append(self._linear(f"{name}.o_proj", np.concatenate(heads)))
        return out

    def _logits(self, hidden: Array) -> Array:
        z = self._arrays["lm_head.weight"][: self._m.num_drafted] @ hidden * self._m.multiplier
        return z if self._m.cap is None else self._m.cap * np.tanh(z / self._m.cap)

    def _target_id(self, draft_id: int) -> int:
        if self._m.d2t == "identity":
            return draft_id
        entry = int(self._arrays["d2t"][draft_id])
        return entry if self._m.d2t == "absolute" else draft_id + entry

    def _named(self, ids: list[int], logits: Array) -> Outputs:
        return {
            "draft_vocab_ids": np.array(ids),
            "draft_ids": np.array([self._target_id(i) for i in ids]),
            "logits": logits,
        }

    def _plain(self, hidden: Array, base: Array, anchor: int) -> Outputs:
        return self._named([int(row.argmax()) for row in base], base)

    def _markov(self, hidden: Array, base: Array, anchor: int) -> Outputs:
        a, kind = self._arrays, self._m.markov
        token, ids, logits, confidence = anchor, [], [], []
        state: Array | None = None
        for h, u in zip(hidden, base, strict=True):
            step, e = u, np.zeros(0)
            if kind is not None:
                e = a["markov_head.markov_w1.weight"][token]
                state = np.zeros_like(e) if state is None else state
                out = e
                if kind == "gated":
                    joint = self._linear("markov_head.gate_proj", np.concatenate((h, e)))
                    out = e / (1 + np.exp(-joint))
                elif kind == "rnn":
                    joint = self._linear("markov_head.joint_proj", np.concatenate((state, e, h)))
                    gate, candidate, output = np.split(joint, 3)
                    gate = 1 / (1 + np.exp(-gate))
                    state = gate * state + (1 - gate) * np.tanh(candidate)
                    out = np.tanh(output)
                step = u + (a["markov_head.markov_w2.weight"] @ out)[: self._m.num_drafted]
            if "confidence_head.proj.weight" in a:
                seen = np.concatenate((h, e)) if self._m.confidence_sees_markov else h
                confidence.append(1 / (1 + np.exp(-self._linear("confidence_head.proj", seen)[0])))
            ids.append(int(step.argmax()))
            logits.append(step)
            token = self._target_id(ids[-1])
        named = self._named(ids, np.stack(logits))
        return named | ({"confidence": np.array(confidence)} if confidence else {})

    def _select(self, hidden: Array, base: Array, anchor: int) -> Outputs:
        a, ids, token, candidates, scores = self._arrays, [], anchor, [], []
        for h, u in zip(hidden, base, strict=True):
            best = sorted(range(len(u)), key=lambda i: (-u[i], i))[: self._m.top_k]
            g = self._linear("candidate_selector.hidden_projection", h)
            origin = a["candidate_selector.predecessor_codebook.weight"][token] * g
            after = a["candidate_selector.successor_codebook.weight"]
            edges = [float(u[b] + origin @ after[b]) for b in best]
            token = best[edges.index(max(edges))]
            ids.append(token)
            candidates.append(best)
            scores.append(edges)
        return self._named(ids, base) | {
            "candidates": np.sort(candidates),
            "candidate_ids": np.array(candidates),
            "candidate_scores": np.array(scores),
        }
