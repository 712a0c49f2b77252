"""The registry of families and backbones: one line each, next to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from draftrt.export.models import dflash, dflash2, dspark, gemma4, qwen3
from draftrt.export.models.heads import Yield
from draftrt.export.models.weights import Weights
from draftrt.spec import Backbone, DrafterSpec, Family


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """How a family drafts; its head's tensors stand in shapes.py."""

    propose: Callable[[DrafterSpec, Weights, Yield], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class BackboneEntry:
    """A backbone's layer; its tensors stand in shapes.py."""

    layer: Callable[..., Any]


FAMILIES = {
    Family.DFLASH: FamilyEntry(dflash.propose),
    Family.DFLASH2: FamilyEntry(dflash2.propose),
    Family.DSPARK: FamilyEntry(dspark.propose),
}

BACKBONES = {
    Backbone.QWEN3: BackboneEntry(qwen3.Layer),
    Backbone.GEMMA4: BackboneEntry(gemma4.Layer),
}
