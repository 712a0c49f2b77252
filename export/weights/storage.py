"""Where the weights of a bundle's graphs lie, and the copying of those that are not left in place.

Places are known before a byte is copied, so graphs are traced and written while a thread copies.
Tensors are copied one slice at a time and hashed as they pass; memory does not grow with the model.
A tensor that two graphs share lies in the data of the first.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from draftrt.errors import DraftrtError, ExportError
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.options import WeightMode
from draftrt.export.weights.data_file import DataFile, converted, is_linkable, num_bytes
from draftrt.export.weights.links import Links, Sources
from draftrt.export.weights.tensors import QuantizedUse, is_quantised, quantised_bytes
from draftrt.files import sha256_of
from draftrt.manifest import FileEntry
from draftrt.quantization import Quantization


@dataclass(frozen=True, slots=True)
class ByteRange:
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


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A quantised weight that is written.

    Attributes:
        use: the weight.
        codes: where its codes lie.
        scales: where its scales lie.
        base: where what is added to them lies; None for nothing.
    """

    use: QuantizedUse
    codes: ByteRange
    scales: ByteRange
    base: ByteRange | None = None


INLINE_BYTES = 1024
ALIGNMENT = 4096
OnTick = Callable[[Progress], None]
HASHED_BYTES = 1 << 28  # of a linked file that is hashed whole unasked: a second
HASH_PIECE = 1 << 22
TICK_S = 0.1


@dataclass(slots=True)
class _DataFile:
    """A data file that is planned: its tensors in order, and its hash once it is written."""

    path: Path
    tensors: list[tuple[GraphTensor, ByteRange]] = field(default_factory=list)
    end: int = 0


class WeightFiles:
    """The weights of the graphs of one bundle folder.

    Attributes:
        progress: of the copying.
        links: checkpoint files that the bundle points to.
        sources: checkpoint files that weights are read from.
    """

    def __init__(
        self,
        folder: Path,
        mode: WeightMode,
        pool: ThreadPoolExecutor | None = None,
        on_tick: OnTick = lambda progress: None,
    ) -> None:
        """Prepare; without a pool everything is planned and nothing written."""
        self.progress = Progress()
        self.links = Links(folder)
        self.sources = Sources()
        self._folder = folder
        self._mode = mode
        self._pool = pool
        self._on_tick = on_tick
        self._inputs: dict[Path, Future[str]] = {}
        self._placed: dict[object, ByteRange] = {}
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
        for tensor in tensors.values():
            for file in tensor.source.files:
                self.sources.add(file)
        plan = _DataFile(self._folder / data)
        places = {
            name: self._place(plan, tensor)
            for name, tensor in tensors.items()
            if num_bytes(tensor) > INLINE_BYTES and not is_quantised(name, tensors, quantization)
        }
        self.progress.total += plan.end
        if self._pool is not None:
            self._copies[data] = self._pool.submit(self._write, plan)
        return PlacedWeights(tensors, places, data, self, quantization)

    def finish(self, data: str) -> FileEntry:
        """Wait until a data file is written; return its size and hash."""
        copy = self._copies[data]
        while not copy.done():
            self._on_tick(self.progress)
            wait([copy], timeout=TICK_S)
        return copy.result()

    def hash_input(self, path: Path) -> None:
        """Begin to hash a file of the checkpoint, once."""
        assert self._pool is not None
        path = path.resolve()
        if path not in self._inputs:
            self._inputs[path] = self._pool.submit(self._hash, path)

    def input_hashes(self) -> dict[Path, str]:
        """Return the hashes of linked files of at most `HASHED_BYTES`, and of `hash_input`'s."""
        return {path: found.result() for path, found in self._inputs.items()}

    def append_quantised(self, data: str, uses: Sequence[QuantizedUse]) -> list[QuantizedWeight]:
        """Quantise weights into a data file behind what is there."""
        from draftrt.export.weights.quantized import write_quantized

        written = []
        self.finish(data)
        path = self._folder / data
        with path.open("r+b") as stream:
            stream.seek(0, 2)
            for use in uses:
                places = [ByteRange(data, *one) for one in write_quantized(stream, use, _align)]
                written.append(QuantizedWeight(use, *places))
        entry = FileEntry(bytes=path.stat().st_size, sha256=sha256_of(path))
        assert self._pool is not None
        self._copies[data] = self._pool.submit(lambda: entry)
        return written

    def entries(self) -> dict[str, FileEntry]:
        """Return size and hash of every data file, waiting for what is still copied."""
        return {data: self.finish(data) for data in self._copies}

    def stop(self) -> None:
        """End the copying soon; what is written so far is of no use."""
        self._stop.set()

    def _place(self, plan: _DataFile, tensor: GraphTensor) -> ByteRange:
        source, size = tensor.source, num_bytes(tensor)
        key: object = (plan.path, tensor.name)
        if source.file is not None:
            # The same rows, or the first of them, may be there already: tied heads, shared tables.
            key = (source.file, source.offset, tensor.dtype, tensor.shape[1:])
        found = self._placed.get(key)
        if found is not None and found.length >= size:
            return ByteRange(found.file, found.offset, size)
        if self._mode is WeightMode.LINK and is_linkable(tensor):
            assert source.file is not None
            is_real = self._pool is not None
            place = ByteRange(self.links.add(source.file, is_real=is_real), source.offset, size)
            if is_real and source.file.stat().st_size <= HASHED_BYTES:
                self.hash_input(source.file)
        else:
            offset = -(-plan.end // ALIGNMENT) * ALIGNMENT
            place = ByteRange(plan.path.name, offset, size)
            plan.tensors.append((tensor, place))
            plan.end = offset + size
        self._placed[key] = place
        return place

    def _hash(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as stream:  # mapped, one that gets shorter is a bus error
            while piece := stream.read(HASH_PIECE):
                self._go_on()
                digest.update(piece)
        return digest.hexdigest()

    def _write(self, plan: _DataFile) -> FileEntry:
        with DataFile(plan.path, self._count) as file:
            for tensor, place in plan.tensors:
                file.fill(place.offset)
                source = tensor.source
                if source.file is not None and is_linkable(tensor):
                    file.copy(source.file, source.offset, place.length)
                else:
                    for piece in converted(tensor):
                        file.write(piece)
            return file.finish()

    def _count(self, count: int) -> None:
        self.progress.done += count
        self._go_on()

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise ExportError("the copying was stopped")


def _align(stream: BinaryIO) -> int:
    """Pad the file to where a tensor may start and return that offset."""
    offset = -(-stream.tell() // ALIGNMENT) * ALIGNMENT
    stream.write(b"\0" * (offset - stream.tell()))
    return offset


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
    places: Mapping[str, ByteRange]
    data: str
    files: WeightFiles
    quantization: Quantization

    def finish(self) -> FileEntry:
        """Wait until they are written; return size and hash of the data file."""
        return self.files.finish(self.data)

    def borrowed(self) -> dict[str, str]:
        """Return the weights that lie in the data of another graph, to that file."""
        links = self.files.links.sources
        return {
            name: place.file
            for name, place in self.places.items()
            if place.file != self.data and place.file not in links
        }

    def num_bytes(self, counts: Callable[[str], bool] = lambda name: True) -> int:
        """Return the bytes of the weights that count, those at one place once, and quantised."""
        places = {self.places[name] for name in self.places if counts(name)}
        first = {(place.file, place.offset): 0 for place in places}
        for place in places:
            key = (place.file, place.offset)
            first[key] = max(first[key], place.length)
        return sum(first.values()) + self.quantised_bytes(counts)

    def quantised_bytes(self, counts: Callable[[str], bool] = lambda name: True) -> int:
        """Return the bytes of codes and scales of the weights that count."""
        return sum(
            quantised_bytes(name, self.tensors, self.quantization)
            for name in self.tensors
            if counts(name)
        )

    def borrowed_bytes(self) -> int:
        """Return the bytes of the weights that lie in the data of another graph."""
        return sum(place.length for place in {self.places[name] for name in self.borrowed()})

    def linked_bytes(self) -> int:
        """Return the bytes that lie in the checkpoint's own files."""
        links = self.files.links.sources
        used = {place for place in self.places.values() if place.file in links}
        return sum(place.length for place in used)


@contextmanager
def weight_files(
    folder: Path, mode: WeightMode, on_tick: OnTick = lambda progress: None
) -> Iterator[WeightFiles]:
    """Give the weights of a bundle folder; an exception ends the copying before it goes on.

    Args:
        folder: the bundle's.
        mode: whether weights are copied or linked.
        on_tick: called a few times a second while something waits for the copying.

    Raises:
        CheckpointError: a file that weights are read from was changed meanwhile, whatever came of
            that.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="weights") as pool:  # one copies, one hashes
        files = WeightFiles(folder, mode, pool, on_tick)
        try:
            yield files
            files.sources.check()
        except BaseException as error:
            files.stop()
            if isinstance(error, (OSError, ValueError, DraftrtError)):
                files.sources.check()
            raise
