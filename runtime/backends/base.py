"""One interface for everything that runs a graph of a bundle.

Knows names, dtypes and shapes; neither what a graph computes nor how tokens are accepted. A backend
holds the caches of its graph: they are inputs that an output shares its buffer with, so no caller
ever passes, copies or returns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from numpy.typing import NDArray

from draftrt.signature import Signature, cache_specs

Arrays = Mapping[str, NDArray[Any]]


class GraphSession(Protocol):
    """A loaded graph with its caches.

    Implementations check every feed with `draftrt.signature.check_feeds` before they run anything,
    zero-initialise the caches (stale NaN rows poison attention even where they are masked), and
    update them in place.
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


def fed_signature(signature: Signature) -> Signature:
    """Return the part of a signature that a caller sees: no cache, neither in nor out."""
    caches = set(cache_specs(signature))
    return replace(
        signature,
        inputs=tuple(t for t in signature.inputs if t not in caches),
        outputs=tuple(t for t in signature.outputs if not t.alias),
    )
