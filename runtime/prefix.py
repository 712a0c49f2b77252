"""The beginning of a text on disk: what the caches hold of a system prompt, for the next start.

One file in NumPy's own format, without pickled objects: tokens, keys and values of both models,
states of a target that has some, and the features that the drafter has not taken yet. It belongs to
the graphs that computed it, whose hash is in it.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.errors import BundleError, UnsupportedError
from draftrt.files import writing_atomically
from draftrt.quantization import DRAFT, TARGET
from draftrt.runtime.backends.base import RowSession
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.reuse import Committed, Holdings
from draftrt.runtime.decoding.turns import claim
from draftrt.runtime.targets.base import Snapshot, Target
from draftrt.runtime.targets.graph import GraphTarget

FORMAT = 1
ABOUT, TOKENS, FEATURES, STATES = "about", "token_ids", "features", "states"
AGAIN = "save it again with this bundle"
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a pair, and the hash of the graphs that they run."""

    target: Target
    drafter: DraftSession | None
    graphs: str


def hash_of_graphs(bundle: Bundle) -> str:
    """Return the hex SHA-256 of what a bundle's graphs compute: its files and what they link to."""
    manifest = bundle.manifest
    told = {name: entry.sha256 for name, entry in manifest.files.items()} | dict(manifest.inputs)
    return hashlib.sha256(json.dumps(sorted(told.items())).encode()).hexdigest()


def save_prefix(path: Path, models: Models, held: Holdings) -> int:
    """Write what the caches hold of the text before; return its tokens.

    Args:
        path: the file, written whole or not at all.
        models: whose caches.
        held: notes of what they hold.

    Raises:
        UnsupportedError: a model that does not run as a graph of ONNX Runtime.
        BundleError: nothing was decoded yet, or the file cannot be written.
    """
    target = _graph_target(models)
    now, noted = held.noted(target, models.drafter)
    if now is None:
        raise BundleError("there is no text to save", hint="decode one first, one token is enough")
    target.rollback(len(now.token_ids) - 1)
    snapshot = target.snapshot()
    arrays: dict[str, NDArray[Any]] = {
        TOKENS: np.array(now.token_ids, np.int64),
        **_named(TARGET, _rows(target.session, TARGET).rows(target.length)),
        **_named(STATES, snapshot.states),
    }
    about: dict[str, Any] = {
        "format": FORMAT,
        "graphs": models.graphs,
        "snapshot": {"length": snapshot.length, "first": snapshot.first, "start": snapshot.start},
        "context_length": None,
    }
    if noted is not None and models.drafter is not None:
        models.drafter.crop(noted.context_length)
        about["context_length"] = noted.context_length
        arrays[FEATURES] = noted.features
        session = _rows(models.drafter.session, DRAFT)
        arrays |= _named(DRAFT, session.rows(noted.context_length))
    arrays[ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with writing_atomically(path) as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    return len(now.token_ids) - 1


def load_prefix(path: Path, models: Models, held: Holdings) -> int:
    """Put the beginning of a text back into the caches; return its tokens.

    Args:
        path: a file of `save_prefix`.
        models: whose caches.
        held: takes note of what they hold then.

    Raises:
        BundleError: no such file, a damaged one, or one of other graphs.
        UnsupportedError: as for `save_prefix`.
    """
    target = _graph_target(models)
    arrays = _read(path)
    try:
        about = json.loads(arrays.pop(ABOUT).tobytes())
        tokens = tuple(arrays.pop(TOKENS).tolist())
        snapshot, length, graphs = about["snapshot"], about["context_length"], about["graphs"]
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path}: no saved prefix: {error}", hint=AGAIN) from error
    if about.get("format") != FORMAT or graphs != models.graphs:
        raise BundleError(
            f"{path}: saved by format {about.get('format')!r:.20} with graphs "
            f"{graphs[:12]}..., expected format {FORMAT} and {models.graphs[:12]}...: the keys and "
            "values of another model",
            hint=AGAIN,
        )
    _rows(target.session, TARGET).put_rows(_below(TARGET, arrays))
    states = _below(STATES, arrays)
    target.take_over(tokens[:-1], Snapshot(**snapshot, token_ids=tokens[:-1], states=states))
    nothing = np.zeros((1, 0, target.feature_size), np.float32)
    is_drafted = models.drafter is not None and length is not None
    if is_drafted:
        assert models.drafter is not None
        _rows(models.drafter.session, DRAFT).put_rows(_below(DRAFT, arrays))
        models.drafter.context_length = length
    now = Committed(
        token_ids=tokens,
        context_length=length if is_drafted else 0,
        features=arrays[FEATURES] if is_drafted else nothing,
        num_rounds=1,
        generation=claim(target, models.drafter if is_drafted else None),
    )
    held.note(now, models.drafter if is_drafted else None)
    return len(tokens) - 1


def _graph_target(models: Models) -> GraphTarget:
    if not isinstance(models.target, GraphTarget):
        raise UnsupportedError(
            "saved prefixes: the target runs as a Hugging Face model",
            hint="export the target's graph and leave out --target",
        )
    return models.target


def _rows(session: Any, name: str) -> RowSession:
    if not isinstance(session, RowSession):
        raise UnsupportedError(
            f"saved prefixes: the caches of the {name} graph lie on a device of their own",
            hint="decode on ONNX Runtime, or without a saved prefix",
        )
    return session


def _named(kind: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {f"{kind}/{name}": array for name, array in arrays.items()}


def _below(kind: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    start = f"{kind}/"
    return {n.removeprefix(start): array for n, array in arrays.items() if n.startswith(start)}


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BundleError(f"{path}: no saved prefix: {reason}", hint=AGAIN) from error
