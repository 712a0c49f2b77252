"""The target's own graph: signature, tensors, tracing and check."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.bundle import GraphEntry
from draftrt.errors import CheckpointError, ExportError, collect
from draftrt.export import rope
from draftrt.export.assemble import TORCH, GraphTensor, graph_dtype
from draftrt.export.check import (
    TOLERANCE,
    check_file,
    open_session,
    widened,
    write_float32_twin,
)
from draftrt.export.checkpoint import FLOATS, TensorRef, from_array, read_headers
from draftrt.export.decoder import Decoder, decoder_shapes
from draftrt.export.graph_file import flexible_path, write_graph
from draftrt.export.initialisers import as_stored
from draftrt.export.ops import Profile
from draftrt.export.quantized_graph import check_quantization
from draftrt.export.signature import CAPACITY
from draftrt.export.trace import trace
from draftrt.export.weights import placeholders
from draftrt.quantization import Quantization
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import DecoderSpec, Precision

GRAPH = "target.onnx"
ROWS = "R"
MAX_ROWS = 256
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def target_signature(
    spec: DecoderSpec,
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
    *,
    is_flexible: bool = False,
) -> Signature:
    """Return the table of a target graph; prompts longer than `MAX_ROWS` are fed in pieces."""
    rows = CAPACITY if is_flexible else max_context
    cache: tuple[int | str, ...] = (1, spec.num_kv_heads, rows, spec.head_dim)
    inputs = [
        TensorSpec(name="input_ids", dtype="int64", shape=(1, ROWS), about="new tokens"),
        TensorSpec(
            name="context_length",
            dtype="int64",
            shape=(1,),
            about="rows committed before this call",
        ),
    ]
    outputs = [
        TensorSpec(name="next_ids", dtype="int64", shape=(1, ROWS), about="greedy next token"),
        TensorSpec(name="logits", dtype="float32", shape=(1, ROWS, spec.vocab_size)),
    ]
    if taps:
        width = len(taps) * spec.hidden_size
        about = f"outputs of decoder layers {list(taps)} (-1: the embedding)"
        outputs.append(
            TensorSpec(name="features", dtype="float32", shape=(1, ROWS, width), about=about)
        )
    for index in range(spec.num_layers):
        for part in ("key", "value"):
            past = f"past_{part}_{index}"
            inputs.append(TensorSpec(name=past, dtype=precision.dtype, shape=cache))
            present = f"present_{part}_{index}"
            outputs.append(TensorSpec(name=present, dtype=precision.dtype, shape=cache, alias=past))
    longest = min(MAX_ROWS, max_context)
    ranges = {ROWS: DimRange(min=1, opt=min(8, longest), max=longest)}
    if is_flexible:
        ranges[CAPACITY] = DimRange(min=1, opt=max_context, max=max_context)
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), dimensions=ranges)


def target_tensors(
    spec: DecoderSpec, folder: Path, precision: Precision, max_context: int
) -> dict[str, GraphTensor]:
    """Return every initialiser of a target's graph, from its checkpoint.

    Raises:
        CheckpointError: tensors missing, left over or of another shape; all at once.
    """
    refs = read_headers(folder)
    wanted = decoder_shapes(spec)
    findings = _problems(spec, refs, wanted, folder)
    collect(findings)
    made: dict[str, GraphTensor] = {}
    for name, shape in wanted.items():
        ref = refs[TABLE if name == HEAD and HEAD not in refs else name]
        if ref.shape[0] > shape[0]:
            ref = ref.rows(0, shape[0])
        made[name] = GraphTensor(name, shape, graph_dtype(name, precision), ref)
    for name, table in rope.table_tensors(spec.rope, max_context).items():
        made[name] = GraphTensor(name, table.shape, torch.float32, from_array(name, table))
    return made


def _problems(
    spec: DecoderSpec,
    refs: Mapping[str, TensorRef],
    wanted: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> list[CheckpointError]:
    missing = [
        name
        for name in wanted
        if name not in refs and not (name == HEAD and spec.tie_word_embeddings)
    ]
    extra = [
        name
        for name in refs
        if name not in wanted and "rotary_emb" not in name and name not in (HEAD, TABLE)
    ]
    wrong = [
        f"{name} is {refs[name].dtype} {list(refs[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in refs
        and name != HEAD
        and (refs[name].shape != shape or refs[name].dtype not in FLOATS)
    ]
    lists = {"missing": missing, "that nothing asks for": extra, "of another shape": wrong}
    hint = (
        "the config describes another model; the Hugging Face port may run it (--no-target-graph)"
    )
    return [
        CheckpointError(f"{folder}: tensors {what}: {names[:6]} ({len(names)} in all)", hint=hint)
        for what, names in lists.items()
        if names
    ]


def write_target_graph(
    spec: DecoderSpec,
    checkpoint: Path,
    folder: Path,
    taps: tuple[int, ...],
    *,
    precision: Precision,
    profile: Profile,
    max_context: int,
    quantization: Quantization,
    report: Callable[[str], None],
) -> GraphEntry:
    """Trace, write and check a target's graph into a bundle folder; return its manifest entry."""
    tensors = target_tensors(spec, checkpoint, precision, max_context)
    check_quantization(tensors, quantization, profile.opset)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    contents = placeholders(shapes, lambda name: tensors[name].dtype)
    module = Decoder(spec, contents, taps=taps, profile=profile)
    flexible = target_signature(spec, taps, precision, max_context, is_flexible=True)
    fixed = target_signature(spec, taps, precision, max_context)
    report(f"trace: target, {spec.num_layers} layers, {precision.value}, max_context {max_context}")
    model = trace(module, flexible, profile)
    path = folder / GRAPH
    data = write_graph(model, tensors, path, {CAPACITY: max_context}, quantization)
    report(f"write: {GRAPH} and {data.stat().st_size / 1e6:.1f} MB of weights")
    check_file(path, fixed)
    check_file(flexible_path(path), flexible)
    tensors = as_stored(path, tensors)
    report(check_target(path, spec, tensors, taps, precision, profile, max_context))
    return GraphEntry(
        file=GRAPH,
        flexible=flexible_path(path).name,
        data=data.name,
        precision=precision,
        profile=profile.value,
        opset=profile.opset,
        max_context=max_context,
        signature=fixed,
        quantization=dict(quantization),
    )


def check_target(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    profile: Profile,
    max_context: int,
) -> str:
    """Run prefill, steps and a long context on ONNX Runtime against the module; return a line.

    Raises:
        ExportError: logits, features or caches differ beyond the precision's tolerance.
    """
    if precision is not Precision.BF16:
        return _compare(path, spec, tensors, taps, precision, profile, max_context)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".twin-") as scratch:
        twin = Path(scratch) / path.name
        write_float32_twin(path, twin)
        wide = {name: widened(tensor) for name, tensor in tensors.items()}
        line = _compare(twin, spec, wide, taps, Precision.FP32, profile, max_context)
    return f"{line} (bf16 graph as its float32 twin)"


def _compare(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    profile: Profile,
    max_context: int,
) -> str:
    contents = {name: tensor.source.read().to(tensor.dtype) for name, tensor in tensors.items()}
    module = Decoder(spec, contents, taps=taps, profile=profile).eval()
    session = open_session(path)
    names = [item.name for item in session.get_outputs()]
    rng = np.random.default_rng(0)
    caches = _random_caches(spec, precision, max_context)
    worst = 0.0
    rounds = [(0, min(9, max_context - 4)), (min(9, max_context - 4), 1), (max_context - 3, 3)]
    for length, rows in rounds:
        ids = rng.integers(0, spec.vocab_size, size=(1, rows), dtype=np.int64)
        feeds = [ids, np.array([length], dtype=np.int64), *caches]
        with torch.no_grad():
            want = [t.numpy() for t in module(*(torch.from_numpy(feed) for feed in feeds))]
        inputs = [item.name for item in session.get_inputs()]
        got = session.run(None, dict(zip(inputs, feeds, strict=True)))
        for name, a, b in zip(names, want, got, strict=True):
            if name == "next_ids":
                continue
            a, b = _rows_in_use(a, length + rows), _rows_in_use(b, length + rows)
            gap = float(np.abs(a - b).max()) / max(1.0, float(np.abs(a).max()))
            if not gap <= TOLERANCE[precision]:
                raise ExportError(
                    f"{path.name}: {name} differs from PyTorch by {gap:.2e} (relative to its "
                    f"largest value) at context {length} with {rows} tokens",
                    hint="the exported graph is wrong: a defect of draftrt, please report it",
                )
            worst = max(worst, gap)
        caches = got[-len(caches) :]
    return f"check: target graph agrees with PyTorch over {len(rounds)} calls, worst {worst:.1e}"


def _rows_in_use(array: Any, rows: int) -> Any:
    """Return the cache rows that hold something; other outputs as they are, in float32."""
    return (array[:, :, :rows] if array.ndim == 4 else array).astype(np.float32)


def _random_caches(spec: DecoderSpec, precision: Precision, max_context: int) -> list[Any]:
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    generator = torch.Generator().manual_seed(7)
    return [
        (0.5 * torch.randn(shape, generator=generator)).to(TORCH[precision.dtype]).numpy()
        for _ in range(2 * spec.num_layers)
    ]
