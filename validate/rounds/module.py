"""The PyTorch module as something that drafts rounds, and as a session of the runtime.

The PyTorch module as something that drafts rounds: NumPy in, NumPy out, caches carried.

Knows how a drafter is called, not what it computes.

A drafter's PyTorch module as a session of the runtime, so that the runtime's loop can drive it.

Used to record what the module does, without an export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.lifecycle import Closing
from draftrt.signature import Signature, check_feeds
from draftrt.spec import Precision

if TYPE_CHECKING:
    from torch import Tensor

    from draftrt.export.checkpoint.drafter import LoadedDrafter
    from draftrt.export.models.drafter import Drafter


Arrays = dict[str, NDArray[Any]]


class ReferenceRounds:
    """Drafts the rounds of one sequence at a time with a PyTorch module.

    Attributes:
        outputs: names of the outputs before the caches.
    """

    def __init__(
        self,
        module: Drafter,
        precision: Precision,
        max_context: int,
        *,
        refuses_overflow: bool = False,
    ) -> None:
        """Prepare for sequences.

        Args:
            module: it drafts.
            precision: element type of its caches.
            max_context: rows of its caches.
            refuses_overflow: end with an error where float16 overflows, for then nothing can be
                compared.
        """
        self._refuses_overflow = refuses_overflow and precision is Precision.FP16
        self.outputs = module.outputs
        self._module = module
        self._precision = precision
        self._max_context = max_context
        self._caches: list[Tensor] = []

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Draft one block; a context length of 0 starts a new sequence with empty caches.

        Args:
            feeds: the module's inputs but the caches: ``anchor`` [1] int64, ``target_hidden``
                [1, T, m*H_t] float32, ``context_length`` [1] int64, and what a sampled one adds.

        Returns:
            The outputs by name, then every cache as ``present_key_i`` and ``present_value_i``;
            bfloat16, which NumPy lacks, is widened to float32.

        Raises:
            ExportError: float16 overflows, and that was to be refused; names the tensor.
        """
        import torch

        from draftrt.export.check.feeds import empty_caches

        if int(feeds["context_length"][0]) == 0:
            self._caches = empty_caches(self._module.spec, self._precision, self._max_context)
        inputs = [
            torch.from_numpy(np.ascontiguousarray(feeds[name])) for name in self._module.inputs
        ]
        with torch.no_grad():
            out = self._module(*inputs, *self._caches)
        if self._refuses_overflow:
            self._check(inputs, out, int(feeds["context_length"][0]))
        count = len(self.outputs)
        self._caches = list(out[count:])
        named = {
            name: _to_numpy(tensor) for name, tensor in zip(self.outputs, out[:count], strict=True)
        }
        for index in range(len(self._caches) // 2):
            named[f"present_key_{index}"] = _to_numpy(self._caches[2 * index])
            named[f"present_value_{index}"] = _to_numpy(self._caches[2 * index + 1])
        return named

    def _check(self, inputs: Sequence[Tensor], out: Sequence[Tensor], length: int) -> None:
        from draftrt.export.weights.overflow import is_finite, overflow_in

        if is_finite(one.numpy() for one in out):
            return
        where = f"the draft graph's module, context {length}"
        error = overflow_in(self._module, lambda: self._module(*inputs, *self._caches), where)
        if error is not None:
            raise error


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    import torch

    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.numpy()
    return array


Feeds = Mapping[str, NDArray[Any]]


class ModuleSession(Closing):
    """Drafts in float32 on the CPU; see `draftrt.runtime.backends.base.GraphSession`."""

    def __init__(
        self,
        loaded: LoadedDrafter,
        max_context: int,
        watch: Callable[[Feeds, Feeds], None] = lambda feeds, outputs: None,
    ) -> None:
        """Load the module with every extra output.

        Args:
            loaded: the drafter.
            max_context: rows of the caches.
            watch: is shown the feeds and outputs of every call.
        """
        from draftrt.export.check.reference import reference_module
        from draftrt.export.models.signature import EXTRA_OUTPUTS, draft_signature
        from draftrt.export.weights.tensors import draft_tensors
        from draftrt.runtime.backends.base import fed_signature

        tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, max_context)
        module = reference_module(loaded.spec, tensors, extra_outputs=EXTRA_OUTPUTS)
        self._rounds = ReferenceRounds(module, Precision.FP32, max_context)
        self._signature = draft_signature(loaded.spec, Precision.FP32, max_context, EXTRA_OUTPUTS)
        self._fed = fed_signature(self._signature)
        self._watch = watch

    @property
    def signature(self) -> Signature:
        """The table that a graph of this drafter would have."""
        return self._signature

    def run(
        self, feeds: Feeds, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Run the module once; caches have all their rows from the start."""
        check_feeds(self._fed, feeds)
        outputs = self._rounds.run(feeds)
        outputs = {name: outputs[name] for name in self._rounds.outputs}
        self._watch(feeds, outputs)
        return {name: array for name, array in outputs.items() if name not in unwanted}

    def close(self) -> None:
        """Do nothing: the module goes with the session."""
