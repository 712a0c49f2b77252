"""The tables that a drafter borrows from its target: stored in a record, or known by their hash.

A hash covers the table's shape and its values as little-endian float32, whatever type the
checkpoint stores them in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.validate.records.cases import GoldenCase
from draftrt.validate.records.files import RecordError

if TYPE_CHECKING:
    from draftrt.export.checkpoint.tensors import TensorRef

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
