"""A drafter's PyTorch module as a session of the runtime, so that the runtime's loop can drive it.

Used to record what the module does, without an export.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from draftrt.lifecycle import Closing
from draftrt.signature import Signature, check_feeds
from draftrt.spec import Precision
from draftrt.validate.rounds.module import ReferenceRounds

if TYPE_CHECKING:
    from draftrt.export.checkpoint.drafter import LoadedDrafter

Arrays = Mapping[str, NDArray[Any]]


class ModuleSession(Closing):
    """Drafts in float32 on the CPU; see `draftrt.runtime.backends.base.GraphSession`."""

    def __init__(
        self,
        loaded: LoadedDrafter,
        max_context: int,
        watch: Callable[[Arrays, Arrays], None] = lambda feeds, outputs: None,
    ) -> None:
        """Load the module with every extra output.

        Args:
            loaded: the drafter.
            max_context: rows of the caches.
            watch: is shown the feeds and outputs of every call.
        """
        from draftrt.export.check.assemble import reference_module
        from draftrt.export.models.outputs import EXTRA_OUTPUTS
        from draftrt.export.models.signature import draft_signature
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
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Run the module once; caches have all their rows from the start."""
        check_feeds(self._fed, feeds)
        outputs = self._rounds.run(feeds)
        outputs = {name: outputs[name] for name in self._rounds.outputs}
        self._watch(feeds, outputs)
        return {name: array for name, array in outputs.items() if name not in unwanted}

    def close(self) -> None:
        """Do nothing: the module goes with the session."""
