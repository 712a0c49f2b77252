"""The gated MLP that every supported layer has."""

from __future__ import annotations

from torch import Tensor

from draftrt.export.models import ops
from draftrt.export.models.activations import ACTIVATIONS
from draftrt.export.models.weights import Weights


def gated_mlp(u: Tensor, w: Weights, activation: str) -> Tensor:
    """Return ``down(act(gate(u)) * up(u))``, [R, H] float32.

    Args:
        u: [R, H], any float dtype.
        w: ``gate_proj``, ``up_proj`` and ``down_proj``, each with a bias or without.
        activation: named as in transformers.
    """
    gate = ops.linear(u, w("gate_proj.weight"), w.get("gate_proj.bias")).float()
    up = ops.linear(u, w("up_proj.weight"), w.get("up_proj.bias")).float()
    inner = ACTIVATIONS[activation](gate) * up
    return ops.linear_to_residual(inner, w("down_proj.weight"), w.get("down_proj.bias"))
