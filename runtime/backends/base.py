"""One interface for everything that runs a graph of a bundle.

Knows names, dtypes and shapes; neither what a graph computes nor how tokens are accepted. A backend
holds the caches of its graph: they are inputs that an output shares its buffer with, so no caller
ever passes, copies or returns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from draftrt.signature import Signature, cache_specs, check_feeds, state_specs

Arrays = Mapping[str, NDArray[Any]]


class GraphSession(Protocol):
    """A loaded graph with its caches.

    Implementations check every feed with `draftrt.signature.check_feeds` before they run anything,
    zero-initialise the caches (stale NaN rows poison attention even where they are masked), and
    update them in place. States (`draftrt.signature.state_specs`) are held twice: a call reads one
    copy and writes the other, and the two change places only when it has succeeded, so that a call
    that failed can be made again.
    """

    @property
    def signature(self) -> Signature:
        """The graph's whole table, caches included."""

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Run the graph once.

        Args:
            feeds: one array for every input that is no cache.
            rows: cache rows in use after this call, for backends that grow their caches; None:
                all of them.
            unwanted: outputs that need not be fetched and are left out of the answer.

        Returns:
            Every wanted output that is no cache, by name; the arrays belong to the caller.

        Raises:
            FeedError: an array does not fit the signature; nothing has run.
            BackendError: the backend failed.
        """

    def close(self) -> None:
        """Free the graph and its caches; calling it twice is harmless."""

    def __enter__(self) -> GraphSession:
        """Return the session itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""


class StateSession(GraphSession, Protocol):
    """A loaded graph with its caches and states, which can be kept and put back."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the states, by the input's name; empty for a graph without states.

        Caches are not among them: their rows stay until a call overwrites them.
        """

    def restore(self, states: Arrays) -> None:
        """Put the states of a snapshot back.

        Raises:
            FeedError: they are not all states of this graph; nothing was changed.
        """


@runtime_checkable
class RowSession(Protocol):
    """A session whose caches can be read and written from the host."""

    def rows(self, count: int) -> dict[str, NDArray[Any]]:
        """Return copies of the first rows of every cache, by the input's name."""

    def put_rows(self, rows: Arrays) -> None:
        """Write the first rows of every cache.

        Raises:
            FeedError: they are not rows of these caches; nothing was changed.
        """


def fed_signature(signature: Signature) -> Signature:
    """Return the part of a signature that a caller sees: no cache or state, neither in nor out."""
    held = {*cache_specs(signature), *state_specs(signature)}
    return replace(
        signature,
        inputs=tuple(t for t in signature.inputs if t not in held),
        outputs=tuple(t for t in signature.outputs if not t.alias and not t.becomes),
    )


def check_states(signature: Signature, states: Arrays) -> None:
    """Refuse a snapshot that is not one of the states of this graph.

    Raises:
        FeedError: lists what does not fit.
    """
    check_feeds(replace(signature, inputs=state_specs(signature)), states)
