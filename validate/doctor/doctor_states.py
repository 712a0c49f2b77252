"""Hidden states of a whole text: from the bundle's own target, or from its Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.runtime.load import find_target
from draftrt.runtime.targets.huggingface import HfTarget

if TYPE_CHECKING:
    from draftrt.export.models.decoder import Decoder


class States(Protocol):
    """Something that gives hidden states of a text."""

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the outputs of the tapped layers, [1, T, m * H_t] float32."""

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hidden states [T, H_t] behind the target's final norm."""


class HfStates:
    """The states of a Hugging Face model."""

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        self._target = HfTarget(folder, layers)

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of a text; see `States.run`."""
        self._target.rollback(0)
        return self._target.prefill(np.asarray(token_ids, np.int64)).features

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Norm hidden states; see `States.final_norm`."""
        return self._target.final_norm(rows)


class ModuleStates:
    """The states of the PyTorch module behind a bundle's target graph, in float32."""

    def __init__(self, module: Decoder) -> None:
        self._module = module

    def run(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of a text; see `States.run`."""
        import torch

        spec, caches = self._module.spec, []
        for layer in range(spec.num_layers):
            groups, dim = spec.cache_shape(layer)
            caches += [torch.zeros(1, groups, len(token_ids), dim) for _ in range(2)]
        ids, start = torch.tensor([list(token_ids)]), torch.zeros(1, dtype=torch.int64)
        last = torch.tensor([len(token_ids) - 1])
        with torch.no_grad():
            features: NDArray[np.float32] = self._module(ids, start, last, *caches)[2].numpy()
        return features

    def final_norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Norm hidden states; see `States.final_norm`."""
        import torch

        from draftrt.export.models.ops import rms_norm

        weight = self._module.get_parameter("model.norm.weight")
        with torch.no_grad():
            normed = rms_norm(torch.from_numpy(rows), weight, self._module.spec.rms_norm_eps)
        array: NDArray[np.float32] = normed.numpy()
        return array


def open_states(bundle: Bundle, target: Path | None, layers: Sequence[int]) -> States:
    """Return what gives the states: the target's folder where one is given, else the bundle's own.

    Raises:
        BackendError: the bundle has no target graph, and no folder is given or remembered.
        SpecError: the folder holds another target than the bundle was exported for.
    """
    if target is None and bundle.manifest.decoder is not None:
        from draftrt.export.check.reference import decoder_from_bundle

        return ModuleStates(decoder_from_bundle(bundle, tuple(layers)))
    return HfStates(find_target(bundle, target), layers)
