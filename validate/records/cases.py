"""Golden cases, read from disk, and the tables that a drafter borrows (docs/records.md).

Golden cases, read from disk (docs/records.md).

Knows files, names, dtypes and shapes, not what a drafter computes. Records carry a version; a file
without one is version 1, which is how the first publishers' records were written.

The tables that a drafter borrows from its target: stored in a record, or known by their hash.

A hash covers the table's shape and its values as little-endian float32, whatever type the
checkpoint stores them in.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.codec import check_file
from draftrt.spec import Family
from draftrt.validate.records.files import RecordError, check_hashes, check_version, read_json

if TYPE_CHECKING:
    from draftrt.export.checkpoint.tensors import TensorRef


CASE_VERSION = 2  # of golden cases written here; version 1 is read too
CASE_FILE, ARRAYS_FILE, DRAFT_FOLDER = "case.json", "expected.npz", "draft"
TABLES = ("embed_tokens", "lm_head")
FEEDS = ("anchor", "target_hidden")
ID_ARRAYS = ("tokens", "draft_ids", "candidates")
VALUE_ARRAYS = ("hidden", "base_logits", "logits", "confidence", "top_logits")
PLACES = ("top_ids",)  # not compared: where top_logits were taken
RANKS = {"tokens": 1, "draft_ids": 1, "confidence": 1}  # all others have two axes
CASE_KEYS: dict[str, type] = {
    "version": int,
    "reference": str,
    "about": str,
    "target_vocab_size": int,
    "num_target_layers": int,
    "target_config": dict,
    "tolerance": float,
    "checkpoint": dict,
    "tables": dict,
    "command": str,
    "created": str,
    "tools": dict,
    "family": Family,
    "sample_from_anchor": bool,
}
KEYS_OF_VERSION_2 = {"checkpoint", "tables", "command", "created", "tools"}
STATED = {"family", "sample_from_anchor"}
OPTIONAL_CASE_KEYS = {"version", "about", "target_config", "tolerance", *KEYS_OF_VERSION_2, *STATED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRound:
    """One recorded round.

    Attributes:
        anchor: id of the anchor token.
        target_hidden: [1, T, m*H_t] float32, features of the tokens committed since the last round.
        expected: recorded array by name (`ID_ARRAYS`, `VALUE_ARRAYS`, `PLACES`); ``tokens`` [n] is
            always there, the others have n rows too.
    """

    anchor: int
    target_hidden: NDArray[np.float32]
    expected: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """A drafter checkpoint with what a trusted implementation computed from it.

    Attributes:
        path: its folder.
        draft: folder of the drafter's checkpoint.
        reference: which code made the answers.
        about: what the case is for.
        target_vocab_size: the target's logical vocabulary.
        num_target_layers: the target's depth.
        target_config: what of the target's config its tables bring with them.
        tolerance: largest absolute difference the recorder vouches for; None: the table's.
        family: family that the recorder stated; None: the config's.
        sample_from_anchor: alignment that the recorder stated; None: the config's.
        tables: the target's ``embed_tokens`` [V, H] and ``lm_head`` [V, H] float32, where they are
            borrowed and stored.
        table_hashes: SHA-256 of the same tables as float32, where they are borrowed but not stored.
        rounds: consecutive rounds of one sequence, from an empty drafter cache.
    """

    path: Path
    draft: Path
    reference: str
    about: str
    target_vocab_size: int
    num_target_layers: int
    target_config: Mapping[str, Any]
    tolerance: float | None
    family: Family | None
    sample_from_anchor: bool | None
    tables: Mapping[str, NDArray[np.float32]]
    table_hashes: Mapping[str, str]
    rounds: tuple[CaseRound, ...]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def stated(self) -> dict[str, Any]:
        """What the recorder stated against the config, as arguments of `load_drafter`."""
        return {name: getattr(self, name) for name in STATED}


def read_case(folder: Path, draft: Path | None = None) -> GoldenCase:
    """Read a golden case.

    Args:
        folder: its folder.
        draft: the checkpoint it was made from, for a case that holds only its hashes.

    Raises:
        RecordError: a file is missing or unreadable, the version is another one, the checkpoint is
            not the recorded one, or arrays are missing, unknown or of a wrong shape; all problems
            of the arrays at once.
    """
    missing = [name for name in (CASE_FILE, ARRAYS_FILE) if not (folder / name).exists()]
    facts = {} if missing else _read_facts(folder / CASE_FILE)
    checkpoint: dict[str, str] = facts.get("checkpoint", {})
    if not checkpoint and not (folder / DRAFT_FOLDER).exists():
        missing.append(DRAFT_FOLDER)
    if missing:
        raise RecordError(
            f"{folder}: no golden case there, missing {', '.join(missing)}",
            hint="a case is a folder with case.json, expected.npz and draft/; one of a target has "
            "prefill.npz, or rounds.json and rounds.npz",
        )
    place = _checkpoint(folder, draft)
    check_hashes(folder, place, checkpoint)
    arrays = read_arrays(folder / ARRAYS_FILE)
    problems: list[str] = []
    tables = {name: _table(name, arrays.pop(name), problems) for name in TABLES if name in arrays}
    rounds = _rounds(arrays, problems)
    if problems:
        raise RecordError(
            f"{folder / ARRAYS_FILE}: " + "; ".join(problems), hint="docs/records.md has the format"
        )
    return GoldenCase(
        path=folder,
        draft=place,
        reference=facts["reference"],
        about=facts.get("about", ""),
        target_vocab_size=facts["target_vocab_size"],
        num_target_layers=facts["num_target_layers"],
        target_config=facts.get("target_config", {}),
        tolerance=facts.get("tolerance"),
        family=Family(facts["family"]) if "family" in facts else None,
        sample_from_anchor=facts.get("sample_from_anchor"),
        tables=tables,
        table_hashes=facts.get("tables", {}),
        rounds=rounds,
    )


def recorded_hashes(folder: Path) -> dict[str, str]:
    """Return file name to SHA-256 of the checkpoint of a case that does not hold it, else nothing.

    Raises:
        RecordError: the case's facts are missing or ill-formed.
    """
    if (folder / DRAFT_FOLDER).exists():
        return {}
    found: dict[str, str] = _read_facts(folder / CASE_FILE).get("checkpoint", {})
    return found


def _checkpoint(folder: Path, given: Path | None) -> Path:
    own = folder / DRAFT_FOLDER
    if given is None and not own.exists():
        raise RecordError(
            f"{folder}: holds the hashes of its drafter, not the drafter",
            hint="give the checkpoint it was made from, with --draft",
        )
    if given is not None and own.exists():
        raise RecordError(
            f"{folder}: holds its drafter, but {given} was given too",
            hint="--draft is for a record without the checkpoint",
        )
    return own if given is None else given


def _read_facts(path: Path) -> dict[str, Any]:
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise RecordError(f"{path}: got {facts!r:.60}, expected a JSON object")
    version = facts.get("version", 1)
    check_version(path, version, CASE_VERSION)
    known = set(CASE_KEYS) - (KEYS_OF_VERSION_2 if version < 2 else set())
    problems = [f"unknown key {key!r}" for key in facts if key not in known]
    for key, kind in CASE_KEYS.items():
        if key not in facts:
            problems += [] if key in OPTIONAL_CASE_KEYS else [f"{key} is missing"]
        elif not (key == "target_config" and isinstance(facts[key], dict)) and not _is_good(
            facts[key], kind
        ):
            kinds = {int: "a positive integer", float: "a positive number", str: "a text"}
            kinds |= {dict: "an object of texts", bool: "true or false"}
            kinds[Family] = f"one of {[one.value for one in Family]}"
            problems.append(f"{key}: got {facts[key]!r:.60}, expected {kinds[kind]}")
    if problems:
        raise RecordError(f"{path}: " + "; ".join(problems))
    return facts


def _is_good(value: Any, kind: type) -> bool:
    if kind in (str, bool):
        return isinstance(value, kind)
    if kind is Family:
        return value in [one.value for one in Family]
    if kind is dict:
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    kinds = (int, float) if kind is float else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < float("inf")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file of plain arrays.

    Raises:
        RecordError: it is missing, or no npz file of plain arrays.
    """
    try:
        check_file(path, RecordError)
        # opened here, because np.load leaves a broken file open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise RecordError(
            f"{path}: cannot be read as an npz file of plain arrays: {error!s:.200}"
        ) from error


def _table(name: str, array: NDArray[Any], problems: list[str]) -> NDArray[np.float32]:
    if array.ndim != 2 or array.dtype != np.float32:
        problems.append(f"{name}: got {array.dtype} {list(array.shape)}, expected float32 [V, H]")
    return array


def _rounds(arrays: Mapping[str, NDArray[Any]], problems: list[str]) -> tuple[CaseRound, ...]:
    grouped: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        match = re.fullmatch(r"r(0|[1-9]\d{0,5})\.(\w+)", name)
        if match is None or match[2] not in (*FEEDS, *ID_ARRAYS, *VALUE_ARRAYS, *PLACES):
            problems.append(f"unknown array {name!r}")
        else:
            grouped.setdefault(int(match[1]), {})[match[2]] = array
    if sorted(grouped) != list(range(len(grouped))) or not grouped:
        problems.append(f"got rounds {sorted(grouped)}, expected r0, r1, ... without a gap")
        return ()
    rounds = [_round(f"r{index}", grouped[index], problems) for index in range(len(grouped))]
    good = tuple(one for one in rounds if one is not None)
    widths = {one.target_hidden.shape[2] for one in good}
    if len(widths) > 1:
        problems.append(f"target_hidden has widths {sorted(widths)}, expected one")
    return good


def _round(name: str, arrays: dict[str, NDArray[Any]], problems: list[str]) -> CaseRound | None:
    absent = [key for key in (*FEEDS, "tokens") if key not in arrays]
    if absent:
        problems.append(f"{name}: {', '.join(absent)} missing")
        return None
    anchor, hidden, count = arrays.pop("anchor"), arrays.pop("target_hidden"), len(problems)
    if anchor.shape != () or anchor.dtype.kind != "i":
        problems.append(f"{name}.anchor: got {anchor.dtype} {list(anchor.shape)}, expected one id")
    if hidden.ndim != 3 or hidden.shape[0] != 1 or 0 in hidden.shape or hidden.dtype != np.float32:
        problems.append(
            f"{name}.target_hidden: got {hidden.dtype} {list(hidden.shape)}, "
            "expected float32 [1, T, m*H_t]"
        )
    rows = arrays["tokens"].shape[:1]
    for key, array in arrays.items():
        kind, rank = ("i" if key in (*ID_ARRAYS, *PLACES) else "f"), RANKS.get(key, 2)
        if array.dtype.kind != kind or array.ndim != rank or array.shape[:1] != rows:
            problems.append(
                f"{name}.{key}: got {array.dtype} {list(array.shape)}, expected "
                f"{'integers' if kind == 'i' else 'floats'} with {rank} axes and as many rows as "
                "tokens"
            )
    places, tops = arrays.get("top_ids"), arrays.get("top_logits")
    if (places is None) != (tops is None) or (
        places is not None and tops is not None and places.shape != tops.shape
    ):
        problems.append(f"{name}: top_ids and top_logits, expected both, of one shape")
    if len(problems) > count:
        return None
    return CaseRound(anchor=int(anchor), target_hidden=hidden, expected=arrays)


ROWS_A_SLICE = 4096


def table_hash(table: TensorRef) -> str:
    """Return the SHA-256 of a table [V, H], read a slice of rows at a time."""
    digest = hashlib.sha256(f"float32 {list(table.shape)}".encode())
    for start in range(0, table.shape[0], ROWS_A_SLICE):
        rows = table.rows(start, min(start + ROWS_A_SLICE, table.shape[0])).read()
        digest.update(rows.float().contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()


def recorded_tables(case: GoldenCase, target: Path | None) -> dict[str, TensorRef]:
    """Return the tables that a record knows by their hash, read from the target's checkpoint.

    Raises:
        RecordError: no target was given, it lacks a table, or the table is another one.
    """
    from draftrt.export.checkpoint.target import read_target

    if not case.table_hashes:
        return {}
    if target is None:
        raise RecordError(
            f"{case.path}: holds the hashes of the target's {' and '.join(case.table_hashes)}, not "
            "the tables",
            hint="give the target it was made with, with --target",
        )
    tables = read_target(target).tables
    found = {}
    for name, recorded in case.table_hashes.items():
        table = tables.get(f"{name}.weight")
        got = "no such table" if table is None else table_hash(table)
        if table is None or got != recorded:
            raise RecordError(
                f"{case.path}: made with another target: {target}: {name} has SHA-256 {got}, "
                f"expected {recorded}",
                hint="give the target that was recorded, or record this one anew",
            )
        found[f"{name}.weight"] = table
    return found
