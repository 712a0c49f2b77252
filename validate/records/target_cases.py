"""Recorded answers of a target, read from disk: prompts, and rounds with rollback.

Knows files, names, dtypes and shapes (docs/records.md), not what a target computes. A folder is a
target case by its files: `PREFILL_FILE`, `ROUNDS_FILE` with `ROUND_ARRAYS_FILE`, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.validate.records.cases import read_arrays
from draftrt.validate.records.files import RecordError, check_hashes, check_version, read_json

TARGET_VERSION = 1
PREFILL_FILE, ROUNDS_FILE, ROUND_ARRAYS_FILE = "prefill.npz", "rounds.json", "rounds.npz"
RECORD_FILE, TARGET_FOLDER = "record.json", "target"
KINDS = ("greedy", "forced")
NUM_TOP = 8  # largest logits of a row of a round that are recorded
MOST_PREFILL_FEATURES = 16  # of a session's prompt; of a longer one the last few
FEW_PREFILL_FEATURES = 4
DIFFERENCES = ("own_difference", "step_difference")
STEPS = ("step_logits", "step_features")
PROMPT_ARRAYS = ("ids", "argmax", "margin", "rows", "logits", "features")
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrompt:
    """What a target says about every row of a prompt.

    Attributes:
        ids: [P] int64.
        argmax: [P] int64, most probable next token behind every row.
        margin: [P] its logit less the second's.
        rows: [N] int64, rows that the next two hold.
        logits: [N, V] float32.
        features: [N, m*H] float32.
        steps: ``logits`` and ``features`` of the same rows, computed token by token; or nothing.
    """

    ids: NDArray[np.int64]
    argmax: NDArray[np.int64]
    margin: NDArray[np.floating[Any]]
    rows: NDArray[np.int64]
    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    steps: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRound:
    """One verification.

    Attributes:
        ids: [T] int64, the anchor and its drafts.
        accepted: drafts that were kept: ``accepted + 1`` rows stand.
        argmax: [T] int64.
        top_ids: [T, k] int64, where the largest logits are.
        top_values: [T, k] float32, the largest logits.
        features: [T, m*H] float32.
    """

    ids: NDArray[np.int64]
    accepted: int
    argmax: NDArray[np.int64]
    top_ids: NDArray[np.int64]
    top_values: NDArray[np.float32]
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSession:
    """A prompt and its rounds.

    Attributes:
        prompt_ids: [P] int64.
        max_rows: most rows of a round.
        kind: ``greedy``: acceptance is the target's own; ``forced``: ids and counts were drawn.
        top_ids: [k] int64, of the prompt's last row.
        top_values: [k] float32, of the same.
        features: [N, m*H] float32, of the prompt's last N rows.
        rounds: in order.
    """

    prompt_ids: NDArray[np.int64]
    max_rows: int
    kind: str
    top_ids: NDArray[np.int64]
    top_values: NDArray[np.float32]
    features: NDArray[np.float32]
    rounds: tuple[RecordedRound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCase:
    """A target checkpoint with what a trusted implementation computed from it.

    Attributes:
        path: the case's folder.
        target: folder of the checkpoint.
        taps: layers whose outputs are the features, 0-based; -1 the embedding output.
        prompts: answers about whole prompts.
        sessions: answers about rounds.
        stated: largest difference, of logits and features, that the record states of other float32
            paths of its maker; None where it states none.
    """

    path: Path
    target: Path
    taps: tuple[int, ...]
    prompts: tuple[RecordedPrompt, ...]
    sessions: tuple[RecordedSession, ...]
    stated: tuple[float, float] | None

    @property
    def longest(self) -> int:
        """Tokens of the longest text, with the last round's rejected rows."""
        lengths = [len(one.ids) for one in self.prompts]
        for one in self.sessions:
            kept = sum(a_round.accepted + 1 for a_round in one.rounds)
            lengths.append(len(one.prompt_ids) + kept + one.max_rows)
        return max(lengths)


def is_target_case(folder: Path) -> bool:
    """Return whether a folder holds recorded answers of a target."""
    return any((folder / name).exists() for name in (PREFILL_FILE, ROUNDS_FILE))


def read_target_case(folder: Path, target: Path | None = None) -> TargetCase:
    """Read a target case.

    Args:
        folder: its folder.
        target: the checkpoint it was made from, for a case that does not hold it.

    Raises:
        RecordError: a file is missing or unreadable, the version is another one, the checkpoint is
            not the recorded one, or the content is ill-formed; all problems of it at once.
    """
    place = _checkpoint(folder, target)
    problems: list[str] = []
    taps: list[tuple[int, ...]] = []
    prompts: tuple[RecordedPrompt, ...] = ()
    sessions: tuple[RecordedSession, ...] = ()
    stated = None
    if (folder / PREFILL_FILE).exists():
        reader = _Reader(read_arrays(folder / PREFILL_FILE), PREFILL_FILE, problems)
        taps.append(reader.taps())
        prompts, stated = _prompts(reader)
    if (folder / ROUNDS_FILE).exists():
        facts = read_json(folder / ROUNDS_FILE)
        reader = _Reader(read_arrays(folder / ROUND_ARRAYS_FILE), ROUND_ARRAYS_FILE, problems)
        found, sessions = _sessions(folder / ROUNDS_FILE, facts, reader)
        taps.append(found)
    if len(set(taps)) > 1:
        problems.append(f"{PREFILL_FILE} has taps {list(taps[0])}, {ROUNDS_FILE} {list(taps[1])}")
    if not problems and not prompts and not sessions:
        problems.append("no prompt and no session, expected at least one")
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise RecordError(
            f"{folder}: " + "; ".join(problems[:8]) + more, hint="docs/records.md has the format"
        )
    return TargetCase(
        path=folder,
        target=place,
        taps=taps[0],
        prompts=prompts,
        sessions=sessions,
        stated=stated,
    )


def _checkpoint(folder: Path, given: Path | None) -> Path:
    own = folder / TARGET_FOLDER
    if given is not None and own.exists() and given.resolve() != own.resolve():
        raise RecordError(
            f"{folder}: holds its target, but {given} was given too",
            hint="--target is for a record without the checkpoint",
        )
    if given is None and not own.exists():
        raise RecordError(
            f"{folder}: holds no target: no such folder: {own}",
            hint="give the checkpoint it was made from, with --target",
        )
    place = own if own.exists() else given
    assert place is not None
    if not place.is_dir():
        raise RecordError(f"{place}: no such folder", hint="give the target with --target")
    if (folder / RECORD_FILE).exists():
        facts = read_json(folder / RECORD_FILE)
        if not isinstance(facts, dict) or not isinstance(facts.get("checkpoint", {}), dict):
            raise RecordError(f"{folder / RECORD_FILE}: got {facts!r:.60}, expected an object")
        check_version(folder / RECORD_FILE, facts.get("version", 1), TARGET_VERSION)
        check_hashes(folder, place, facts.get("checkpoint", {}))
    return place


class _Reader:
    """Takes arrays out of a file by name, and keeps what is wrong with them."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], file: str, problems: list[str]) -> None:
        self._arrays, self._taken = dict(arrays), set[str]()
        self._file, self.problems = file, problems

    def has(self, name: str) -> bool:
        return name in self._arrays

    def take(
        self, name: str, kind: str, shape: Sequence[int | None], *, below: int | None = None
    ) -> NDArray[Any]:
        """Return an array, or one of zeros in its place where it is missing or ill-formed.

        Args:
            name: in the file.
            kind: ``i`` or ``f``, as NumPy's ``dtype.kind``.
            shape: expected sizes; None is any.
            below: ids must be 0 or more and below this.
        """
        self._taken.add(name)
        array = self._arrays.get(name)
        empty = np.zeros([size or 1 for size in shape], np.int64 if kind == "i" else np.float32)
        if array is None:
            self.problems.append(f"{self._file}: {name} is missing")
            return empty
        fits = array.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if array.dtype.kind != kind or not fits or (kind == "i" and 0 in array.shape):
            sizes = ["any" if size is None else size for size in shape]
            self.problems.append(
                f"{self._file}: {name}: got {array.dtype} {list(array.shape)}, expected "
                f"{'integers' if kind == 'i' else 'floats'} {sizes}"
            )
            return empty
        if kind == "f" and not np.isfinite(array).all():
            self.problems.append(f"{self._file}: {name} holds infinities or NaN")
            return empty
        if below is not None and array.size and (array.min() < 0 or array.max() >= below):
            self.problems.append(
                f"{self._file}: {name}: got {array.min()} to {array.max()}, expected 0 to "
                f"{below - 1}"
            )
            return empty
        return array.astype(np.int64) if kind == "i" else array

    def taps(self) -> tuple[int, ...]:
        return tuple(self.take("taps", "i", [None]).tolist()) if self.has("taps") else ()

    def leave(self) -> None:
        """Tell the arrays that nobody took."""
        if left := sorted(set(self._arrays) - self._taken - {"taps"}):
            self.problems.append(f"{self._file}: unknown arrays {left[:4]}")


def _prompts(
    reader: _Reader,
) -> tuple[tuple[RecordedPrompt, ...], tuple[float, float] | None]:
    prompts, stated = [], []
    for length in reader.take("lengths", "i", [None]).tolist():
        name = f"p{length}."
        rows = reader.take(f"{name}rows", "i", [None], below=length)
        logits = reader.take(f"{name}logits", "f", [len(rows), None])
        features = reader.take(f"{name}features", "f", [len(rows), None])
        vocabulary = logits.shape[1]
        steps = {
            key.removeprefix("step_"): reader.take(f"{name}{key}", "f", [len(rows), None])
            for key in STEPS
            if reader.has(f"{name}{key}")
        }
        stated += [
            reader.take(f"{name}{key}", "f", [2]) for key in DIFFERENCES if reader.has(name + key)
        ]
        prompts.append(
            RecordedPrompt(
                ids=reader.take(f"{name}ids", "i", [length], below=vocabulary),
                argmax=reader.take(f"{name}argmax", "i", [length], below=vocabulary),
                margin=reader.take(f"{name}margin", "f", [length]),
                rows=rows,
                logits=logits,
                features=features,
                steps=steps,
            )
        )
    reader.leave()
    largest = np.max(stated, axis=0) if stated else None
    return tuple(prompts), None if largest is None else (float(largest[0]), float(largest[1]))


def _sessions(
    path: Path, facts: Any, reader: _Reader
) -> tuple[tuple[int, ...], tuple[RecordedSession, ...]]:
    problems = reader.problems
    sessions = facts.get("sessions") if isinstance(facts, dict) else None
    if not isinstance(sessions, list) or not sessions:
        raise RecordError(
            f"{path}: got {facts!r:.60}, expected an object with a list of sessions",
            hint="docs/records.md has the format",
        )
    check_version(path, facts.get("version", TARGET_VERSION), TARGET_VERSION)
    taps = facts.get("taps", [])
    if not _are_ids(taps, least=-1, least_size=0):
        problems.append(f"{path.name}: taps: got {taps!r:.40}, expected a list of layers")
        taps = []
    read = []
    for index, one in enumerate(sessions):
        where = f"{path.name}: session {index}"
        if (wrong := _session_problem(one)) is not None:
            problems.append(f"{where}: {wrong}")
        else:
            read.append(_session(f"s{index}.", one, reader))
            problems += [f"{where}: {text}" for text in _disagreements(one, read[-1])]
    reader.leave()
    return tuple(taps), tuple(read)


def _session_problem(one: Any) -> str | None:
    if not isinstance(one, dict):
        return f"got {one!r:.40}, expected an object"
    for key in ("prompt_ids", "committed_ids"):
        if not _are_ids(one.get(key)):
            return f"{key}: got {one.get(key)!r:.40}, expected a list of ids"
    if one.get("kind") not in KINDS:
        return f"kind: got {one.get('kind')!r:.40}, expected one of {list(KINDS)}"
    rounds, most = one.get("rounds"), one.get("max_rows")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        return f"max_rows: got {most!r:.40}, expected a whole number from 1 on"
    if not isinstance(rounds, list):
        return f"rounds: got {rounds!r:.40}, expected a list"
    for index, a_round in enumerate(rounds):
        ids = a_round.get("ids") if isinstance(a_round, dict) else None
        if not _are_ids(ids) or ids is None or len(ids) > most:
            return f"round {index}: ids: got {ids!r:.40}, expected 1 to {most} ids"
        kept = a_round.get("accepted")
        if not isinstance(kept, int) or isinstance(kept, bool) or not 0 <= kept < len(ids):
            return f"round {index}: accepted: got {kept!r:.40}, expected 0 to {len(ids) - 1}"
    return None


def _session(name: str, one: dict[str, Any], reader: _Reader) -> RecordedSession:
    rounds = []
    for index, a_round in enumerate(one["rounds"]):
        place, count = f"{name}r{index}.", len(a_round["ids"])
        tops = reader.take(f"{place}top_ids", "i", [count, None])
        rounds.append(
            RecordedRound(
                ids=np.array(a_round["ids"], np.int64),
                accepted=a_round["accepted"],
                argmax=reader.take(f"{place}argmax", "i", [count]),
                top_ids=tops,
                top_values=reader.take(f"{place}top_values", "f", tops.shape),
                features=reader.take(f"{place}features", "f", [count, None]),
            )
        )
    tops = reader.take(f"{name}prefill.top_ids", "i", [None])
    return RecordedSession(
        prompt_ids=np.array(one["prompt_ids"], np.int64),
        max_rows=one["max_rows"],
        kind=one["kind"],
        top_ids=tops,
        top_values=reader.take(f"{name}prefill.top_values", "f", tops.shape),
        features=reader.take(f"{name}prefill.features", "f", [None, None]),
        rounds=tuple(rounds),
    )


def _disagreements(one: dict[str, Any], session: RecordedSession) -> Iterable[str]:
    """Return what a session states twice and differently."""
    committed = [*one["prompt_ids"]]
    for index, a_round in enumerate(session.rounds):
        committed += a_round.ids[: a_round.accepted + 1].tolist()
        if session.kind == "greedy":
            own = greedily_accepted(a_round.ids, a_round.argmax)
            if own != a_round.accepted:
                yield f"round {index} accepts {a_round.accepted}, greedy acceptance {own}"
    if committed != one["committed_ids"]:
        yield "committed_ids are not the prompt and the accepted rows"
    if len(session.features) > len(session.prompt_ids):
        yield f"{len(session.features)} rows of features for {len(session.prompt_ids)} tokens"


def greedily_accepted(ids: NDArray[np.int64], argmax: NDArray[np.int64]) -> int:
    """Return how many drafts, ids [T] but the first, are what the row before each chose, [T]."""
    same = argmax[:-1] == ids[1:]
    return len(same) if same.all() else int(same.argmin())


def _are_ids(value: Any, *, least: int = 0, least_size: int = 1) -> bool:
    return (
        isinstance(value, list)
        and len(value) >= least_size
        and all(
            isinstance(one, int) and not isinstance(one, bool) and one >= least for one in value
        )
    )
