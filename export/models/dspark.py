"""DSpark proposals: a sequential Markov head over the block's logits, and confidences.

Formulas: DSpark paper (arXiv 2607.05147) and DeepSpec's ``markov_head.py``. For draft k with the
previous token x and e = W1[x]: vanilla ``W2 e``; gated ``W2 (sigmoid(Wg [h; e]) * e)``; rnn carries
a state s (zero at the first draft) through one joint projection of [s; e; h] into gate, candidate
and output. W1 is indexed by target ids, W2 yields draft ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.heads import Yield, to_target_ids
from draftrt.export.models.weights import Weights
from draftrt.spec import DrafterSpec


def propose(spec: DrafterSpec, weights: Weights, rows: Yield) -> dict[str, Tensor]:
    """Draft left to right, each token's bias coming from the one before it.

    Returns:
        ``draft_vocab_ids`` [n] int64, ``logits`` [n, V'] float32 with the bias added and, with a
        confidence head, ``confidence`` [n] float32.
    """
    if spec.markov is None:
        drafted = {
            "draft_vocab_ids": rows.choose(0, rows.base_logits),
            "logits": rows.base_logits,
        }
        embedded = None
    else:
        drafted, embedded = _walk(spec, weights, rows)
    if spec.confidence is not None:
        drafted["confidence"] = _confidence(spec, weights, rows.hidden, embedded)
    return drafted


def _walk(spec: DrafterSpec, weights: Weights, rows: Yield) -> tuple[dict[str, Tensor], Tensor]:
    step = MarkovSteps(spec, weights)
    previous = rows.anchor
    ids, logits, embedded = [], [], []
    for k in range(spec.num_draft_tokens):
        hidden = rows.hidden[k : k + 1]
        e = step.embed(previous)
        step_logits = rows.base_logits[k : k + 1] + step.bias(hidden, e)
        chosen = rows.choose(k, step_logits)
        if k + 1 < spec.num_draft_tokens:
            previous = to_target_ids(spec, weights, chosen)
        ids.append(chosen)
        logits.append(step_logits)
        embedded.append(e)
    drafted = {"draft_vocab_ids": torch.cat(ids), "logits": torch.cat(logits)}
    return drafted, torch.cat(embedded)


class MarkovSteps:
    """The Markov head as a step function; rnn keeps its state between calls."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        assert spec.markov is not None
        self._type = spec.markov.type
        self._weights = weights.below("markov_head")
        self._state: Tensor | None = None

    def embed(self, token: Tensor) -> Tensor:
        """Return the embedding of the previous token [1], as [1, r] float32."""
        return torch.nn.functional.embedding(token, self._weights("markov_w1.weight")).float()

    def bias(self, hidden: Tensor, e: Tensor) -> Tensor:
        """Return the logit bias [1, V'] float32 for a row's hidden [1, H] and embedding [1, r]."""
        w = self._weights
        if self._type == "gated":
            gate = ops.linear(
                torch.cat((hidden, e), dim=-1), w("gate_proj.weight"), w("gate_proj.bias")
            )
            e = torch.sigmoid(gate.float()) * e
        elif self._type == "rnn":
            e = self._advance(hidden, e)
        return ops.linear(e, w("markov_w2.weight")).float()

    def _advance(self, hidden: Tensor, e: Tensor) -> Tensor:
        w = self._weights
        state = torch.zeros_like(e) if self._state is None else self._state
        joint = ops.linear(
            torch.cat((state, e, hidden), dim=-1), w("joint_proj.weight"), w("joint_proj.bias")
        ).float()
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        self._state = gate * state + (1 - gate) * torch.tanh(candidate)
        return torch.tanh(output)


def _confidence(
    spec: DrafterSpec, weights: Weights, hidden: Tensor, embedded: Tensor | None
) -> Tensor:
    """Probability [n] float32 that draft k survives given that those before it did."""
    assert spec.confidence is not None
    features = hidden
    if spec.confidence.with_markov and embedded is not None:
        features = torch.cat((hidden, embedded), dim=-1)
    w = weights.below("confidence_head.proj")
    return torch.sigmoid(ops.linear(features, w("weight"), w.get("bias")).float())[:, 0]
