"""The registry of families and backbones: one line each, next to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from draftrt.export import dflash, dflash2, dspark, gemma4, qwen3
from draftrt.export.weights import Weights
from draftrt.export.yields import Yield
from draftrt.spec import Backbone, DrafterSpec, Family, LayerSpec

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """How a family drafts: its head's tensors and its proposal."""

    head_shapes: Callable[[DrafterSpec], Shapes]
    propose: Callable[[DrafterSpec, Weights, Yield], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class BackboneEntry:
    """A backbone: its layer's tensors and the layer."""

    layer_shapes: Callable[[DrafterSpec, LayerSpec], Shapes]
    layer: Callable[..., Any]


FAMILIES = {
    Family.DFLASH: FamilyEntry(dflash.head_shapes, dflash.propose),
    Family.DFLASH2: FamilyEntry(dflash2.head_shapes, dflash2.propose),
    Family.DSPARK: FamilyEntry(dspark.head_shapes, dspark.propose),
}

BACKBONES = {
    Backbone.QWEN3: BackboneEntry(qwen3.layer_shapes, qwen3.Layer),
    Backbone.GEMMA4: BackboneEntry(gemma4.layer_shapes, gemma4.Layer),
}


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """Return every tensor the checkpoint and target must supply, canonical name to shape.

    A size of -1 is free (rows of the Markov embedding). ``embed_tokens`` and ``lm_head`` are
    included whoever supplies them.
    """
    hidden = spec.hidden_size
    shapes: Shapes = {
        "embed_tokens.weight": (spec.input_vocab_size, hidden),
        "fc.weight": (hidden, spec.feature_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (spec.draft_vocab_size, hidden),
    }
    if spec.mask_embedding:
        shapes["mask_embedding"] = (hidden,)
    if spec.vocab_map.value != "identity":
        shapes["d2t"] = (spec.draft_vocab_size,)
    for index, rule in enumerate(spec.layers):
        layer = BACKBONES[spec.backbone].layer_shapes(spec, rule)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | FAMILIES[spec.family].head_shapes(spec)
