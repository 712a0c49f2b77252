"""How each family drafts from the rows that a backbone yields.

DFlash2 proposals: the top candidates of each row, chosen left to right by a selector.

With A and B the codebooks and g the row's projected hidden, the score of going from token a to
candidate b is ``U(b) + <A[a] * g, B[b]>`` with U the row's logits after multiplier and soft cap
(DFlash2 release notes, "candidate selector"); greedy takes the best candidate of each row in turn,
sampling draws from the softmax of its scores.

DSpark proposals: a sequential Markov head over the block's logits, and confidences.

Formulas: DSpark paper (arXiv 2607.05147) and DeepSpec's ``markov_head.py``. For draft k with the
previous token x and e = W1[x]: vanilla ``W2 e``; gated ``W2 (sigmoid(Wg [h; e]) * e)``; rnn carries
a state s (zero at the first draft) through one joint projection of [s; e; h] into gate, candidate
and output. W1 is indexed by target ids, W2 yields draft ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.weights import Weights
from draftrt.export.tracing import names
from draftrt.spec import DrafterSpec, VocabMap


@dataclass(frozen=True, slots=True)
class Noise:
    """What makes the choice of each draft a draw.

    With Gumbel noise it is one from ``softmax(scores * inverse_temperature)``; with zero noise and
    a factor of one it is the greedy choice, exactly.

    Attributes:
        values: [n, W] float32, added to the scores of each draft's W choices.
        inverse_temperature: [1] float32, factor on the scores before that.
    """

    values: Tensor
    inverse_temperature: Tensor


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows that yield drafts, in drafting order.

    Attributes:
        anchor: [1] int64, target id before the first draft.
        hidden: [n, H] float32, final-normed.
        base_logits: [n, V'] float32 over the draft ids that may be drafted (V' = min(Vd, V)).
        noise: what makes each choice a draw; None to draft greedily.
    """

    anchor: Tensor
    hidden: Tensor
    base_logits: Tensor
    noise: Noise | None = None

    def choose(self, first: int, scores: Tensor) -> Tensor:
        """Choose among W candidates for each of R drafts.

        Args:
            first: index of the first of these drafts.
            scores: [R, W] float32.

        Returns:
            [R] int64, the chosen columns.
        """
        if self.noise is not None:
            rows = self.noise.values[first : first + scores.shape[0]]
            scores = scores * self.noise.inverse_temperature + rows
        return names.name(scores.argmax(dim=-1), names.CHOICE, into=scores)


def to_target_ids(spec: DrafterSpec, weights: Weights, draft_ids: Tensor) -> Tensor:
    """Map draft ids [n] int64 to the target's vocabulary."""
    if spec.vocab_map is VocabMap.IDENTITY:
        return draft_ids
    mapped = names.name(weights("d2t").index_select(0, draft_ids), names.MAPPED, draft_ids)
    return mapped if spec.vocab_map is VocabMap.ABSOLUTE else draft_ids + mapped


def propose_dflash(spec: DrafterSpec, weights: Weights, rows: DraftRows) -> dict[str, Tensor]:
    """Draft from each row's own logits.

    Returns:
        ``draft_vocab_ids`` [n] int64 and ``logits`` [n, V'] float32.
    """
    return {"draft_vocab_ids": rows.choose(0, rows.base_logits), "logits": rows.base_logits}


def propose_dflash2(spec: DrafterSpec, weights: Weights, rows: DraftRows) -> dict[str, Tensor]:
    """Walk over each row's candidates.

    Returns:
        ``draft_vocab_ids`` [n] int64, ``logits`` [n, V'] float32 (before the selector),
        ``candidates`` [n, top_k] int64 in ascending order of id, and the same as the walk saw them:
        ``candidate_ids`` [n, top_k] int64 with ``candidate_scores`` [n, top_k] float32.
    """
    assert spec.selector is not None
    w = weights.below("candidate_selector")
    scores, candidates = torch.topk(rows.base_logits, spec.selector.top_k, dim=-1)
    projected = ops.linear(rows.hidden, w.below("hidden_projection")).float()  # [n, r]
    successors = ops.look_up(candidates, w.below("successor_codebook")).float()  # [n, k, r]
    previous, ids, seen = rows.anchor, [], []
    for row in range(spec.num_draft_tokens):
        origin = ops.look_up(previous, w.below("predecessor_codebook")).float()  # [1, r]
        query = origin * projected[row : row + 1]
        edges = (scores[row] + (successors[row] * query).sum(dim=-1))[None]  # [1, k]
        previous = candidates[row].gather(0, rows.choose(row, edges))
        ids.append(previous)
        seen.append(edges)
    return {
        "draft_vocab_ids": torch.cat(ids),
        "logits": rows.base_logits,
        "candidates": torch.sort(candidates, dim=-1).values,
        "candidate_ids": candidates,
        "candidate_scores": torch.cat(seen),
    }


def propose_dspark(spec: DrafterSpec, weights: Weights, rows: DraftRows) -> dict[str, Tensor]:
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


def _walk(spec: DrafterSpec, weights: Weights, rows: DraftRows) -> tuple[dict[str, Tensor], Tensor]:
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
        return ops.look_up(token, self._weights.below("markov_w1")).float()

    def bias(self, hidden: Tensor, e: Tensor) -> Tensor:
        """Return the logit bias [1, V'] float32 for a row's hidden [1, H] and embedding [1, r]."""
        w = self._weights
        if self._type == "gated":
            gate = ops.linear(torch.cat((hidden, e), dim=-1), w.below("gate_proj"))
            e = torch.sigmoid(gate.float()) * e
        elif self._type == "rnn":
            e = self._advance(hidden, e)
        return ops.linear(e, w.below("markov_w2")).float()

    def _advance(self, hidden: Tensor, e: Tensor) -> Tensor:
        w = self._weights
        state = torch.zeros_like(e) if self._state is None else self._state
        joint = ops.linear(torch.cat((state, e, hidden), dim=-1), w.below("joint_proj")).float()
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
    return torch.sigmoid(ops.linear(features, w).float())[:, 0]
