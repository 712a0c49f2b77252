"""A drafter's PyTorch module as something that drafts rounds, and as a session of the runtime.

NumPy in, NumPy out, caches carried. Knows how a drafter is called, not what it computes. As a
session the runtime's loop drives it: that records what the module does, without an export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from draftrt.lifecycle import Closing
from draftrt.signature import CONTEXT_LENGTH, PAST, PRESENT, Signature, cache_names, check_feeds
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
        self._refuses_overflow = refuses_overflow
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
        from draftrt.export.check.compare import call_module, check_finite, to_numpy
        from draftrt.export.check.feeds import empty_caches

        length = int(feeds[CONTEXT_LENGTH][0])
        if length == 0:
            self._caches = empty_caches(self._module.spec, self._precision, self._max_context)
        fed: dict[str, NDArray[Any] | Tensor] = {name: feeds[name] for name in self._module.inputs}
        fed |= {f"{PAST}{index}": cache for index, cache in enumerate(self._caches)}
        layers = range(len(self._caches) // 2)
        present = [name for layer in layers for name in cache_names(PRESENT, layer)]
        out = call_module(self._module, fed, (*self.outputs, *present))
        named = {name: to_numpy(tensor) for name, tensor in out.items()}
        if self._refuses_overflow:
            where = f"the draft graph's module, context {length}"
            check_finite(self._module, fed, named, self._precision, where)
        self._caches = [out[name] for name in present]
        return named


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
