"""The module of a drafter with its contents loaded, and caches for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.weights.tensors import GraphTensor
from draftrt.profile import Profile
from draftrt.spec import DrafterSpec, Precision


def reference_module(
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    *,
    extra_outputs: tuple[str, ...] = (),
    profile: Profile = Profile.FIXED,
    is_sampled: bool = False,
) -> Drafter:
    """Return the module with its contents loaded, ready to compute in eager mode."""
    contents = {name: tensor.read() for name, tensor in tensors.items()}
    kind = SampledDrafter if is_sampled else Drafter
    return kind(spec, contents, profile=profile, extra_outputs=extra_outputs).eval()


def empty_caches(spec: DrafterSpec, precision: Precision, max_context: int) -> list[Tensor]:
    """Return zeroed caches, keys and values of each layer in turn, [1, G, L, D]."""
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    kind: torch.dtype = getattr(torch, precision.dtype)
    return [torch.zeros(shape, dtype=kind) for _ in range(2 * spec.num_layers)]
