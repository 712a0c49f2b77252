"""Opening a checkpoint folder: tensor headers and config, before anything is made of either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.errors import CheckpointError, DraftrtError, collect
from draftrt.export.checkpoint.safetensors import check_folder, read_headers
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.reader import Facts
from draftrt.json_file import read_object

CONFIG = "config.json"


def open_checkpoint(folder: Path) -> tuple[Facts, Mapping[str, TensorRef], list[DraftrtError]]:
    """Read a folder's config and the headers of its tensors.

    Returns:
        The facts to resolve, each tensor by its own name (none where the headers are at fault), and
        what is at fault with the headers, to be told along with what the config shows.

    Raises:
        DraftrtError: there is no folder or no readable config; what is wrong with the headers is
            told with the latter.
    """
    check_folder(folder)
    findings: list[DraftrtError] = []
    refs: dict[str, TensorRef] = {}
    try:
        refs = read_headers(folder)
    except CheckpointError as error:
        findings.append(error)
    try:
        facts = Facts(read_config(folder), folder / CONFIG)
    except CheckpointError as error:
        collect([*findings, error])
        raise
    return facts, refs, findings


def read_config(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json.

    Raises:
        CheckpointError: it cannot be read.
    """
    hint = "give a folder that holds config.json"
    return read_object(folder / CONFIG, CheckpointError, hint=hint)
