"""Where the weights of a bundle's graphs lie, and the copying of those that are not left in place.

Places are known before a byte is copied, so graphs are traced and written while a thread copies.
Tensors are copied one slice at a time and hashed as they pass; memory does not grow with the model.
A tensor that two graphs share lies in the data of the first.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import torch

from draftrt.bundle import sha256_of
from draftrt.errors import ExportError
from draftrt.export.assemble import GraphTensor
from draftrt.export.links import Links
from draftrt.export.quantized_file import write_quantized
from draftrt.export.quantized_graph import QuantizedUse
from draftrt.manifest import FileEntry
from draftrt.quantization import HEAD, TABLES, Part, Quantization, part_of

INLINE_BYTES = 1024
ALIGNMENT = 4096
SLICE_BYTES = 1 << 24


class WeightMode(str, Enum):
    """Whether a bundle holds its weights or points to those of the checkpoint."""

    COPY = "copy"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file.

    Attributes:
        file: name in the bundle.
        offset: first byte.
        length: number of bytes.
    """

    file: str
    offset: int
    length: int


@dataclass(slots=True)
class Progress:
    """How far the copying is, in bytes; read while another thread counts."""

    done: int = 0
    total: int = 0


@dataclass(slots=True)
class _DataFile:
    """A data file that is planned: its tensors in order, and its hash once it is written."""

    path: Path
    tensors: list[tuple[GraphTensor, Place]] = field(default_factory=list)
    end: int = 0


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A quantised weight that is written.

    Attributes:
        use: the weight.
        codes: where its codes lie.
        scales: where its scales lie.
    """

    use: QuantizedUse
    codes: Place
    scales: Place


class WeightFiles:
    """The weights of the graphs of one bundle folder.

    Attributes:
        progress: of the copying.
        links: checkpoint files that the bundle points to.
    """

    def __init__(self, folder: Path, mode: WeightMode, pool: ThreadPoolExecutor) -> None:
        self.progress = Progress()
        self.links = Links(folder)
        self._folder = folder
        self._mode = mode
        self._pool = pool
        self._placed: dict[object, Place] = {}
        self._copies: dict[str, Future[FileEntry]] = {}
        self._stop = threading.Event()

    def place(
        self, data: str, tensors: Mapping[str, GraphTensor], quantization: Quantization
    ) -> PlacedWeights:
        """Decide where the tensors of a graph lie, and begin to copy those that are not there yet.

        Args:
            data: name of the graph's data file.
            tensors: every initialiser that stands for a weight. Those of at most 1 KB get no place:
                they go into the graph; nor do those of a quantised part.
            quantization: parts whose weights are quantised, once the graph is there.
        """
        plan = _DataFile(self._folder / data)
        places = {
            name: self._place(plan, tensor)
            for name, tensor in tensors.items()
            if num_bytes(tensor) > INLINE_BYTES and not _is_quantised(name, tensors, quantization)
        }
        self.progress.total += plan.end
        self._copies[data] = self._pool.submit(self._write, plan)
        return PlacedWeights(tensors, places, data, self, quantization)

    def finish(self, data: str) -> FileEntry:
        """Wait until a data file is written; return its size and hash."""
        return self._copies[data].result()

    def append_quantised(self, data: str, uses: Sequence[QuantizedUse]) -> list[QuantizedWeight]:
        """Quantise weights into a data file behind what is there."""
        written = []
        self.finish(data)
        path = self._folder / data
        with path.open("r+b") as stream:
            stream.seek(0, 2)
            for use in uses:
                codes, scales = write_quantized(stream, use, _align)
                written.append(QuantizedWeight(use, Place(data, *codes), Place(data, *scales)))
        entry = FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
        self._copies[data] = self._pool.submit(lambda: entry)
        return written

    def is_done(self) -> bool:
        """Return whether nothing is left to copy."""
        return all(copy.done() for copy in self._copies.values())

    def entries(self) -> dict[str, FileEntry]:
        """Return size and hash of every data file, waiting for what is still copied."""
        return {data: self.finish(data) for data in self._copies}

    def stop(self) -> None:
        """End the copying soon; what is written so far is of no use."""
        self._stop.set()

    def _place(self, plan: _DataFile, tensor: GraphTensor) -> Place:
        source, size = tensor.source, num_bytes(tensor)
        key: object = (plan.path, tensor.name)
        if source.file is not None:
            # The same rows, or the first of them, may be there already: tied heads, shared tables.
            key = (source.file, source.offset, tensor.dtype, tensor.shape[1:])
        found = self._placed.get(key)
        if found is not None and found.length >= size:
            return Place(found.file, found.offset, size)
        if self._mode is WeightMode.LINK and is_linkable(tensor):
            assert source.file is not None
            place = Place(self.links.add(source.file), source.offset, size)
        else:
            offset = -(-plan.end // ALIGNMENT) * ALIGNMENT
            place = Place(plan.path.name, offset, size)
            plan.tensors.append((tensor, place))
            plan.end = offset + size
        self._placed[key] = place
        return place

    def _write(self, plan: _DataFile) -> FileEntry:
        digest = hashlib.sha256()
        with plan.path.open("wb") as stream:
            for tensor, place in plan.tensors:
                gap = b"\0" * (place.offset - stream.tell())
                for piece in _pieces(gap, tensor):
                    if self._stop.is_set():
                        raise ExportError("the copying was stopped")
                    digest.update(piece)
                    stream.write(piece)
                    self.progress.done += len(piece)
        return FileEntry(bytes=plan.end, sha256=digest.hexdigest())


def _align(stream: BinaryIO) -> int:
    """Pad the file to where a tensor may start and return that offset."""
    offset = -(-stream.tell() // ALIGNMENT) * ALIGNMENT
    stream.write(b"\0" * (offset - stream.tell()))
    return offset


def _pieces(gap: bytes, tensor: GraphTensor) -> Iterator[memoryview]:
    yield memoryview(gap)
    yield from slices(tensor)


@dataclass(frozen=True, slots=True)
class PlacedWeights:
    """The weights of one graph, and where they lie or are being copied to.

    Attributes:
        tensors: every initialiser that stands for a weight.
        places: where those above 1 KB lie.
        data: the graph's data file.
        files: all weights of the bundle.
        quantization: parts whose weights are quantised.
    """

    tensors: Mapping[str, GraphTensor]
    places: Mapping[str, Place]
    data: str
    files: WeightFiles
    quantization: Quantization

    def finish(self) -> FileEntry:
        """Wait until they are written; return size and hash of the data file."""
        return self.files.finish(self.data)


@contextmanager
def weight_files(folder: Path, mode: WeightMode) -> Iterator[WeightFiles]:
    """Give the weights of a bundle folder; an exception ends the copying before it goes on."""
    with ThreadPoolExecutor(1, thread_name_prefix="weights") as pool:
        files = WeightFiles(folder, mode, pool)
        try:
            yield files
        except BaseException:
            files.stop()
            raise


def _is_quantised(
    name: str, tensors: Mapping[str, GraphTensor], quantization: Quantization
) -> bool:
    """Return whether every use of a weight is quantised; a tied table has two."""
    if name in TABLES:
        is_tied = HEAD not in tensors
        return Part.EMBEDDING in quantization and (not is_tied or Part.HEAD in quantization)
    return part_of(name, is_product=True) in quantization


def num_bytes(tensor: GraphTensor) -> int:
    """Return the bytes of a tensor in its graph."""
    size = tensor.dtype.itemsize
    for length in tensor.shape:
        size *= length
    return size


def is_linkable(tensor: GraphTensor) -> bool:
    """Return whether the checkpoint holds the very bytes that the graph needs."""
    source = tensor.source
    return source.file is not None and source.dtype == str(tensor.dtype).removeprefix("torch.")


def slices(tensor: GraphTensor) -> Iterator[memoryview]:
    """Yield the content in the graph's element type, a slice of rows at a time."""
    source, rows = tensor.source, tensor.shape[0] if tensor.shape else 1
    width = max(1, source.num_bytes // max(rows, 1))
    step = max(1, SLICE_BYTES // width)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows)).read().to(tensor.dtype).contiguous()
        yield part.reshape(-1).view(torch.uint8).numpy().data
