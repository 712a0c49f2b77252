"""The files of a bundle against its manifest, and that manifest read.

The files of a bundle against its manifest: there, inside the bundle, of their size and content.

Nothing is read before its place and kind are known: a file lies in the bundle, or is a symbolic
link into the ``blobs`` of a Hugging Face cache that the bundle lies in, and is a regular file.

``manifest.json``: its format, its version, its checksum, and what to say of another build's.

The checksum is that of everything but ``files``, whose entries are compared with the files.
Numbers count as they are written.
"""

from __future__ import annotations

import hashlib
import json
import math
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from draftrt import __version__
from draftrt.codec import KINDS, folder_problem, from_json, parse, path_problem, read_bytes, to_json
from draftrt.errors import BundleError, SpecError
from draftrt.files import Known, Stamp, read_known, remember, sample_sha256, sha256_of, stamp_of
from draftrt.manifest import GraphEntry, LinkEntry, Manifest
from draftrt.signature import CONFIDENCE, DRAFT_IDS, NEXT_IDS, PAST, PRESENT, Signature, TensorSpec
from draftrt.spec import DrafterSpec

SMALL_BYTES = 1 << 20
SHOWN_BYTES = 64 << 20  # hashing less than that shows no progress
MOST_NAME = 1000
ERASE = "\r\033[K"
BLOBS, CACHED_MODEL = "blobs", "models--"


class Verify(Enum):
    """How much of a bundle's content is read when it is opened.

    NONE: nothing; sizes are compared. REMEMBERED: every byte the first time on this machine and
    where a file was touched since, else small files and samples of large ones. ALL: every byte.
    """

    NONE = "none"
    REMEMBERED = "remembered"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a manifest says of a file; empty or None where it says nothing.

    Attributes:
        bytes: size.
        sha256: hash of all of it.
        sample_sha256: hash of its samples.
        source: where a linked file lay.
    """

    bytes: int | None
    sha256: str
    sample_sha256: str = ""
    source: str = ""


def expected_files(manifest: Manifest) -> dict[str, Expected]:
    """Return what a manifest says of every file, by its relative path."""
    found = {name: Expected(bytes=e.bytes, sha256=e.sha256) for name, e in manifest.files.items()}
    found |= {name: _of_link(entry) for name, entry in manifest.links.items()}
    for plan in manifest.plans.values():
        found[plan.file] = Expected(bytes=plan.size_bytes, sha256=plan.sha256)
        if plan.log_sha256:
            found[plan.log] = Expected(bytes=None, sha256=plan.log_sha256)
    return found


def _of_link(entry: LinkEntry) -> Expected:
    return Expected(
        bytes=entry.bytes,
        sha256=entry.sha256,
        sample_sha256=entry.sample_sha256,
        source=entry.source,
    )


def name_problem(name: str) -> str:
    """Return why a text is no relative path inside a bundle; empty when it is one."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "got a name that is no Unicode text"
    if not name or length > MOST_NAME or any(len(p.encode()) > 255 for p in name.split("/")):
        return f"got a name of {length} bytes, expected 1 to {MOST_NAME}, and 255 between slashes"
    if not name.isprintable():
        return f"got {name!r:.80}, expected printable characters"
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in path.parts[0] or ".." in path.parts:
        return f"got {name!r:.200}, expected a path inside the bundle"
    if str(path) != name or name == ".":
        return f"got {name!r:.200}, expected it without '.' and doubled slashes"
    return ""


def place_problem(bundle: Path, name: str) -> str:
    """Return why a file of a bundle is not to be read; empty when it is."""
    path = bundle / name
    try:
        found = path.stat()
        place = path.resolve()
    except FileNotFoundError:
        target = path.readlink() if path.is_symlink() else None
        return (
            "is missing"
            if target is None
            else f"is a symbolic link to {target}, which is not there"
        )
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read: {why or error}"
    root = bundle.resolve()
    if not place.is_relative_to(root) and not _is_blob(place, root):
        return (
            f"is a symbolic link out of the bundle, to {place}; expected a file in it, or in the "
            f"{BLOBS} of the Hugging Face cache that it lies in"
        )
    kind = KINDS.get(stat.S_IFMT(found.st_mode))
    return f"is {kind}, expected a file" if kind else ""


def _is_blob(place: Path, root: Path) -> bool:
    """Whether a file lies in the blobs that a snapshot's symbolic links lead to."""
    if place.parent.name != BLOBS:
        return False
    owner = place.parent.parent
    return owner.name.startswith(CACHED_MODEL) or owner in root.parents


def size_problems(bundle: Path, expected: Mapping[str, Expected]) -> dict[str, str]:
    """Return what is wrong with the places, kinds and sizes of files, by name."""
    found = {name: _size_problem(bundle, name, one) for name, one in expected.items()}
    return {name: problem for name, problem in found.items() if problem}


def _size_problem(bundle: Path, name: str, expected: Expected) -> str:
    problem = place_problem(bundle, name)
    if problem:
        return problem
    size = (bundle / name).stat().st_size
    if expected.bytes is None or size == expected.bytes:
        return ""
    return f"has {size} bytes, expected {expected.bytes}"


def content_problems(
    bundle: Path, expected: Mapping[str, Expected], verify: Verify
) -> dict[str, str]:
    """Return whose content differs from what was written, by name, and remember what does not.

    Args:
        bundle: its folder.
        expected: files that are there, regular and of their size.
        verify: how much is read.
    """
    if verify is Verify.NONE:
        return {}
    known = read_known(bundle)
    stamps = {name: stamp_of(bundle / name) for name in expected}
    changed = [
        name
        for name, one in expected.items()
        if verify is Verify.ALL or not _is_as_known(bundle / name, one, stamps[name], known, name)
    ]
    problems: dict[str, str] = {}
    checked: dict[str, Known] = {}
    progress = _Hashing(sum(stamps[name].bytes for name in changed))
    for name in changed:
        path, one = bundle / name, expected[name]
        try:
            problem, sha256 = _hashed(path, one, known.get(name), progress)
        except OSError as error:
            problem, sha256 = f"cannot be read: {error.strerror or error}", ""
        if problem:
            problems[name] = problem
        elif stamp_of(path) == stamps[name]:  # nobody wrote to it meanwhile
            checked[name] = Known(
                stamp=stamps[name], sha256=sha256, sample_sha256=sample_sha256(path)
            )
    progress.end()
    if any(known.get(name) != one for name, one in checked.items()):
        remember(bundle, {name: one for name, one in (known | checked).items() if name in expected})
    return problems


def remember_written(bundle: Path, manifest: Manifest) -> None:
    """Remember the files of a bundle that this process has just written, and hashed or sampled."""
    known = read_known(bundle)
    for name, one in expected_files(manifest).items():
        path = bundle / name
        if (one.sha256 or one.sample_sha256) and path.is_file():
            sample = sample_sha256(path)
            known[name] = Known(stamp=stamp_of(path), sha256=one.sha256, sample_sha256=sample)
    remember(bundle, known)


def _is_as_known(
    path: Path, expected: Expected, stamp: Stamp, known: Mapping[str, Known], name: str
) -> bool:
    """Whether a file is as it was when it was hashed, by its stamp and samples of its content."""
    before = known.get(name)
    if before is None or before.stamp != stamp or stamp.bytes <= SMALL_BYTES:
        return False
    if expected.sha256 and before.sha256 != expected.sha256:
        return False
    try:
        return sample_sha256(path) == before.sample_sha256
    except OSError:
        return False


def _hashed(
    path: Path, expected: Expected, before: Known | None, progress: _Hashing
) -> tuple[str, str]:
    """Return what is wrong with a file's content, and its hash.

    Of a file whose hash the manifest lacks, that of the first time on this machine counts.
    """
    found = sha256_of(path, lambda count: progress.add(path.name, count))
    wanted = expected.sha256 or (before.sha256 if before else "") or found
    if found != wanted:
        return f"got sha256 {found[:12]}…, expected {wanted[:12]}…", found
    if not expected.sha256 and expected.sample_sha256:
        sample = sample_sha256(path)
        if sample != expected.sample_sha256:
            wanted = expected.sample_sha256
            return f"got samples of sha256 {sample[:12]}…, expected {wanted[:12]}…", found
    return "", found


class _Hashing:
    """How far the hashing of files is, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._is_shown = total > SHOWN_BYTES and sys.stderr is not None and sys.stderr.isatty()

    def add(self, name: str, count: int) -> None:
        """Count bytes and show them."""
        self._done += count
        if self._is_shown:
            figures = f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB"
            sys.stderr.write(f"{ERASE}verifying {name}: {figures}")
            sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()


MANIFEST = "manifest.json"
FORMAT = "draftrt-bundle"
VERSION = 3
MOST_BYTES = 64 << 20
CHECKSUM, UNCOUNTED = "checksum", ("checksum", "files")


def read_manifest(folder: Path) -> Manifest:
    """Read ``manifest.json`` of a bundle.

    Raises:
        BundleError: missing, not JSON, another format or version, or ill-formed.
    """
    path = folder / MANIFEST
    is_there = folder.is_symlink() or folder.exists()
    if problem := folder_problem(folder) if is_there else path_problem(folder):
        raise BundleError(problem, hint="give the folder that `draftrt export ... -o` wrote")
    if path.exists() and (problem := place_problem(folder, MANIFEST)):
        raise BundleError(f"{path}: {problem}", hint="give the bundle's own folder")
    if not path.exists():
        raise BundleError(
            f"{folder}: no {MANIFEST} there",
            hint="give the folder that `draftrt export ... -o` wrote",
        )
    content = read_bytes(path, BundleError, most=MOST_BYTES)
    try:
        data = parse(content)
    except ValueError as error:
        raise BundleError(
            f"{path}: cannot be read as JSON: {error!s:.200}",
            hint="copy the bundle again, or export it again",
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        got = (data.get("format"), data.get("version")) if isinstance(data, dict) else type(data)
        raise BundleError(
            f"{path}: got format {got}, expected ('{FORMAT}', {VERSION})",
            hint="export the bundle again with this version of draftrt",
        )
    own = ("format", "version", CHECKSUM)
    facts = {name: value for name, value in data.items() if name not in own}
    try:
        manifest = from_json(Manifest, facts)
        check_manifest(manifest)
    except (BundleError, SpecError) as error:
        raise BundleError(f"{path}: {error.message}", hint=_other_version(facts)) from error
    if CHECKSUM in data and data[CHECKSUM] != (found := _checksum(content)):
        raise BundleError(
            f"{path}: was changed after it was written: got checksum {found[:12]}…, expected "
            f"{data[CHECKSUM]!s:.12}…",
            hint="copy the bundle again, or export it again",
        )
    return manifest


def manifest_text(manifest: Manifest) -> str:
    """Return the text of ``manifest.json``, its checksum included."""
    content = {"format": FORMAT, "version": VERSION, **to_json(manifest)}
    checksum = _checksum(json.dumps(content).encode())
    return json.dumps({**content, CHECKSUM: checksum}, indent=1, ensure_ascii=False) + "\n"


def _checksum(text: bytes) -> str:
    """Return the hex SHA-256 of what a manifest's text says but for `UNCOUNTED`."""
    content = json.loads(text, parse_float="float {}".format, parse_int="int {}".format)
    counted = {name: value for name, value in content.items() if name not in UNCOUNTED}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def _other_version(content: dict[str, Any]) -> str:
    """Return why a manifest may hold what this version does not expect, and what to do."""
    tools = content.get("tools")
    written = tools.get("draftrt") if isinstance(tools, dict) else None
    if isinstance(written, str) and written != __version__:
        by = f"draftrt {written:.40}, and this is {__version__}"
    else:
        by = f"another build of draftrt {__version__}"
    return f"the bundle was written by {by}, or its manifest was edited; export it again"


MOST, MOST_SIZE, MOST_ROWS = 1 << 62, 1 << 31, 1 << 24
MOST_RANK, CACHE_RANK, MOST_PROBLEMS = 8, 4, 8
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # those of export/activations
DTYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
POSITIVE = (
    *("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
    *("block_size", "num_draft_tokens", "target_hidden_size", "input_vocab_size"),
    "draft_vocab_size",
)


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        BundleError: names every entry that cannot be so.
    """
    problems = list(islice(_value_problems(to_json(manifest), "manifest"), MOST_PROBLEMS))
    problems += [*_name_problems(manifest), *_unlisted(manifest)]
    for key, graph in manifest.graphs.items():
        problems += [f"graphs.{key}: {problem}" for problem in _graph_problems(graph)]
    if manifest.drafter is not None:
        problems += [f"drafter: {problem}" for problem in _drafter_problems(manifest.drafter)]
        if "draft" in manifest.graphs:
            signature = manifest.graphs["draft"].signature
            problems += _of_drafter(manifest.drafter, signature)
    if problems:
        raise BundleError("; ".join(problems[:MOST_PROBLEMS]))


def _value_problems(value: object, where: str) -> Iterator[str]:
    """Yield which numbers and texts no manifest holds, with their places."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _value_problems(key, where)
            yield from _value_problems(item, f"{where}.{key!s:.60}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _value_problems(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: got {value}, expected a finite number"
    elif isinstance(value, int) and abs(value) >= MOST:
        yield f"{where}: got an integer of {value.bit_length()} bits, expected at most 62"
    elif isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        yield f"{where}: got {value!r:.60}, expected Unicode text"


def _graph_problems(graph: GraphEntry) -> Iterator[str]:
    """Yield what of a graph's table cannot be so."""
    signature = graph.signature
    if not 1 <= graph.max_context <= MOST_ROWS:
        yield f"max_context: got {graph.max_context}, expected 1 to {MOST_ROWS}"
    tensors = (*signature.inputs, *signature.outputs)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        yield "signature: a name is there twice"
    for tensor in tensors:
        yield from (f"{tensor.name!s:.60}: {one}" for one in _tensor_problems(tensor, signature))
    aliases = [tensor.alias for tensor in signature.outputs if tensor.alias]
    if len(set(aliases)) < len(aliases):
        yield "signature: two outputs share the buffer of one input"
    states = [tensor.becomes for tensor in signature.outputs if tensor.becomes]
    if len({*states, *aliases}) < len(states) + len(set(aliases)):
        yield "signature: two outputs become one input"
    if NEXT_IDS in names and not {"R", "S"} <= signature.dimensions.keys():
        yield f"dimensions: got {sorted(signature.dimensions)}, expected R and S"


def _tensor_problems(tensor: TensorSpec, signature: Signature) -> Iterator[str]:
    if tensor.dtype not in DTYPES:
        yield f"got dtype {tensor.dtype!r:.40}, expected one of {list(DTYPES)}"
    if len(tensor.shape) > MOST_RANK:
        yield f"got {len(tensor.shape)} axes, expected at most {MOST_RANK}"
    for size in tensor.shape[:MOST_RANK]:
        if isinstance(size, str) and size not in signature.dimensions:
            yield f"got the size {size!r:.40}, expected one of {sorted(signature.dimensions)}"
        if isinstance(size, int) and not 1 <= size <= MOST_SIZE:
            yield f"got a size of {size}, expected 1 to {MOST_SIZE}"
    if tensor.becomes is not None:
        past = next((one for one in signature.inputs if one.name == tensor.becomes), None)
        if past is None or (past.shape, past.dtype) != (tensor.shape, tensor.dtype):
            yield f"becomes {tensor.becomes!r:.60}, which is no input of its shape and type"
        elif not all(isinstance(size, int) for size in tensor.shape):
            yield f"got a state of shape {list(tensor.shape)}, expected whole numbers"
        if tensor.alias is not None:
            yield "shares the buffer of an input and becomes one, expected one of the two"
    if tensor.alias is None:
        return
    past = next((one for one in signature.inputs if one.name == tensor.alias), None)
    if past is None or (past.shape, past.dtype) != (tensor.shape, tensor.dtype):
        yield f"shares the buffer of {tensor.alias!r:.60}, which is no input of its shape and type"
    elif len(tensor.shape) != CACHE_RANK or not all(isinstance(s, int) for s in tensor.shape):
        yield f"got a cache of shape {list(tensor.shape)}, expected four whole numbers"
    elif tensor.name.startswith(PRESENT) and tensor.alias != tensor.name.replace(PRESENT, PAST, 1):
        yield f"shares the buffer of {tensor.alias}, expected that of its own past"


def _drafter_problems(spec: DrafterSpec) -> Iterator[str]:
    """Yield what of a drafter's facts cannot be so."""
    for name in POSITIVE:
        if not 1 <= getattr(spec, name) <= MOST_SIZE:
            yield f"{name}: got {getattr(spec, name)}, expected 1 to {MOST_SIZE}"
    if spec.num_kv_heads >= 1 and spec.num_heads % spec.num_kv_heads:
        yield f"num_heads: got {spec.num_heads}, expected a multiple of {spec.num_kv_heads}"
    if len(spec.layers) != spec.num_layers:
        yield f"layers: got {len(spec.layers)}, expected {spec.num_layers}"
    if not spec.target_layer_ids or min(spec.target_layer_ids) < -1:
        yield f"target_layer_ids: got {list(spec.target_layer_ids)}, expected layers from -1 on"
    if spec.mask_token_id < 0:
        yield f"mask_token_id: got {spec.mask_token_id}, expected a token id"
    if spec.activation not in ACTIVATIONS:
        yield f"activation: got {spec.activation!r:.40}, expected one of {sorted(ACTIVATIONS)}"
    for name in ("rms_norm_eps", "attention_scale"):
        if getattr(spec, name) <= 0:
            yield f"{name}: got {getattr(spec, name)}, expected more than 0"


def _of_drafter(spec: DrafterSpec, signature: Signature) -> Iterator[str]:
    """Yield where the draft graph's table contradicts the drafter's facts."""
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    drafts = outputs.get(DRAFT_IDS)
    if drafts is not None and drafts.shape != (1, spec.num_draft_tokens):
        yield (
            f"graphs.draft: draft_ids: got shape {list(drafts.shape)}, expected [1, "
            f"{spec.num_draft_tokens}] of block_size {spec.block_size}"
        )
    if (CONFIDENCE in outputs) and spec.confidence is None:
        yield "graphs.draft: got confidences, expected none: the drafter has no such head"


def _name_problems(manifest: Manifest) -> list[str]:
    """Return which names of files do not lie in the bundle."""
    names = {f"files.{name!r:.80}": name for name in manifest.files}
    names |= {f"links.{name!r:.80}": name for name in manifest.links}
    for key, graph in manifest.graphs.items():
        names |= {f"graphs.{key}.file": graph.file, f"graphs.{key}.data": graph.data}
        if graph.flexible:
            names[f"graphs.{key}.flexible"] = graph.flexible
        names |= {f"graphs.{key}.borrowed": file for file in graph.borrowed.values()}
    for key, plan in manifest.plans.items():
        names |= {f"plans.{key!r:.80}.file": plan.file, f"plans.{key!r:.80}.log": plan.log}
    return [
        f"{where}: {problem}" for where, name in names.items() if (problem := name_problem(name))
    ]


def _unlisted(manifest: Manifest) -> list[str]:
    """Return which files of graphs are not listed with a size and a hash."""
    known = {*manifest.files, *manifest.links}
    found = []
    for key, graph in manifest.graphs.items():
        named = {graph.file, graph.data, graph.flexible or graph.file, *graph.borrowed.values()}
        found += [f"graphs.{key}: {name} is not in files" for name in sorted(named - known)]
    return found
