"""Safetensors checkpoints read lazily: headers first, bytes only when a tensor is asked for.

Knows files, names, dtypes and shapes; nothing about models. Pickled weights are never opened.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.codec import folder_problem, parse, read_object, shown
from draftrt.dtypes import BY_NAME, BY_SAFETENSORS
from draftrt.errors import CheckpointError, DraftrtError, collect
from draftrt.export.checkpoint.quantized.read import DecodedTensors, decode
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.reader import Facts

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 8
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_folder(folder: Path) -> None:
    """Refuse what is no folder.

    Raises:
        CheckpointError: there is nothing, or a file.
    """
    if problem := folder_problem(folder):
        raise CheckpointError(
            problem,
            hint="give a checkpoint's folder, or its name on the hub as owner/name[@revision]",
        )


def read_headers(folder: Path) -> dict[str, TensorRef]:
    """Return every tensor of a checkpoint folder, one file or a sharded index, by name.

    Raises:
        CheckpointError: no safetensors there (pickled files are named), a broken file or index.
    """
    check_folder(folder)
    index = folder / INDEX
    files = (
        _indexed_files(index)
        if index.is_file()
        else sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    )
    if not files:
        raise _no_weights(folder)
    refs: dict[str, TensorRef] = {}
    findings: list[DraftrtError] = []
    for file in files:
        try:
            for ref in _file_header(file):
                if ref.name in refs:
                    raise CheckpointError(
                        f"{file}: tensor {ref.name!r} is also in {refs[ref.name].file}"
                    )
                refs[ref.name] = ref
        except CheckpointError as error:
            findings.append(error)
        except OSError as error:
            findings.append(CheckpointError(f"{file}: cannot be read: {error.strerror}"))
    collect(findings)
    if index.is_file():
        _check_index(index, refs)
    return refs


def _no_weights(folder: Path) -> CheckpointError:
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        return CheckpointError(
            f"{folder}: only pickled weights found ({', '.join(pickled[:4])}), "
            "expected *.safetensors",
            hint="pickled files can run code and are never loaded; convert them with "
            "safetensors.torch.save_file, or take the publisher's safetensors files",
        )
    return CheckpointError(
        f"{folder}: no *.safetensors file found",
        hint="give the folder that holds config.json and model.safetensors",
    )


def _weight_map(index: Path) -> dict[str, str]:
    mapping = read_object(index, CheckpointError).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(v, str) for v in mapping.values()):
        raise CheckpointError(
            f"{index}: weight_map: got {shown(mapping)}, expected a map of names to file names"
        )
    return mapping


def _indexed_files(index: Path) -> list[Path]:
    names = sorted(set(_weight_map(index).values()))
    foreign = [
        name
        for name in names
        if Path(name).name != name or len(name.encode(errors="replace")) > 255
    ]
    if foreign:
        raise CheckpointError(f"{index}: shards outside the folder: {foreign[:3]!s:.200}")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index.parent}: shards missing: {missing}", hint="the download is incomplete"
        )
    return [index.parent / name for name in names]


def _check_index(index: Path, refs: dict[str, TensorRef]) -> None:
    mapping = _weight_map(index)
    lost = sorted(set(mapping) - set(refs))
    moved = sorted(
        name
        for name, ref in refs.items()
        if ref.file is not None and mapping.get(name) not in (None, ref.file.name)
    )
    if lost or moved:
        raise CheckpointError(
            f"{index}: tensors not where the index says: missing {lost[:5]}, elsewhere {moved[:5]}",
            hint="the download is incomplete or mixed",
        )


def _file_header(file: Path) -> list[TensorRef]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(
                f"{file}: not a safetensors file, or cut short ({size} bytes)",
                hint="download it again; a Git LFS pointer is a small text file",
            )
        raw = stream.read(length)
    try:
        header = parse(raw)
    except ValueError as error:
        raise CheckpointError(f"{file}: broken header: {error!s:.200}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: broken header: got {shown(header)}, expected an object")
    header.pop("__metadata__", None)
    entries = [_entry(file, name, entry, 8 + length) for name, entry in header.items()]
    at = 8 + length
    for ref, end in sorted(entries, key=lambda item: (item[0].offset, item[1])):
        if ref.offset != at:
            raise CheckpointError(f"{file}: {ref.name!r} lies at {ref.offset}, expected {at}")
        at = end
    if at != size:
        raise CheckpointError(
            f"{file}: got {size} bytes, expected {at} as its header says",
            hint="the download is incomplete or damaged",
        )
    return [ref for ref, _ in entries]


def _entry(file: Path, name: str, entry: Any, base: int) -> tuple[TensorRef, int]:
    """Return a tensor of a header and the first byte after it."""
    try:
        name.encode()
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        known = BY_SAFETENSORS.get(entry["dtype"])
        dtype = known.name if known else str(entry["dtype"])
        if len(shape) > MAX_RANK or not all(
            isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 62
            for v in (*shape, begin, end)
        ):
            raise ValueError("shape and offsets must be non-negative integers")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: broken entry {name!r}: {error!r:.200}") from error
    ref = TensorRef(name, dtype, shape, file, base + begin)
    if dtype in BY_NAME and ref.num_bytes != end - begin:
        raise CheckpointError(
            f"{file}: {name!r} has {end - begin} bytes, expected {ref.num_bytes} for {list(shape)}"
        )
    return ref, base + end


CONFIG = "config.json"


def open_checkpoint(folder: Path) -> tuple[Facts, DecodedTensors, list[DraftrtError]]:
    """Read a folder's config and the headers of its tensors.

    Returns:
        The facts to resolve, each tensor by its own name (none where the headers are at fault),
        quantised weights as what they stand for, and what is at fault with the headers, to be told
        along with what the config shows.

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
    return facts, decode(folder, facts.config, refs), findings


def read_tensors(folder: Path) -> Mapping[str, TensorRef]:
    """Return every tensor of a checkpoint, quantised weights as what they stand for.

    Raises:
        DraftrtError: config, headers or quantised weights cannot be read.
    """
    decoded = decode(folder, read_config(folder), read_headers(folder))
    collect(list(decoded.findings))
    return decoded.tensors


def read_config(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json.

    Raises:
        CheckpointError: it cannot be read.
    """
    hint = "give a folder that holds config.json"
    return read_object(folder / CONFIG, CheckpointError, hint=hint)
