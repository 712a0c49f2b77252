"""The gate for a target's graph: against its PyTorch module, whole or a few layers of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.errors import ExportError
from draftrt.export.assemble import TORCH
from draftrt.export.check import open_session, widened, write_float32_twin
from draftrt.export.check_ids import TOLERANCE
from draftrt.export.check_sampled import (
    check_weights,
    one_layer_file,
    row_blocks,
    sampled_layers,
)
from draftrt.export.decoder import Decoder
from draftrt.export.graph_tensors import GraphTensor
from draftrt.export.layers import state_name
from draftrt.export.one_layer import Rows, feature_sources
from draftrt.export.profile import Profile
from draftrt.export.quantized_file import QuantizedRef
from draftrt.export.unread import Unread
from draftrt.spec import DecoderSpec, Precision

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


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
    contents = {name: tensor.read() for name, tensor in tensors.items()}
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
        want = _run_module(module, feeds)
        got = _run_session(session, feeds)
        where = f"{path.name}: at context {length} with {rows} tokens"
        worst = max(worst, _largest_gap(where, names, want, got, length + rows, precision))
        caches = got[-len(caches) :]
    return f"target graph agrees with PyTorch over {len(rounds)} calls, worst {worst:.1e}"


def check_target_sampled(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
) -> list[str]:
    """Compare a large target's graph with its module as `draftrt.export.check_sampled` says.

    Returns:
        One line for all weights, one for the features and one a layer that was computed.

    Raises:
        ExportError: a weight's bytes or the places of the features differ, or logits or caches
            beyond the tolerance.
    """
    lines = [f"rows of all {check_weights(path, tensors)} weights are the checkpoint's"]
    lines += _check_features(path, taps)
    computed = Precision.FP32 if precision is Precision.BF16 else precision
    layers = sampled_layers(spec.num_layers)
    head = HEAD if HEAD in tensors else TABLE
    rows = tensors[head].shape[0]
    is_whole = isinstance(tensors[head].source, QuantizedRef)
    blocks = [Rows(0, rows)] * len(layers) if is_whole else row_blocks(rows, len(layers))
    rounds = [(0, 5), (min(37, max_context - 5), 1), (max_context - 3, 3)]
    rng = np.random.default_rng(0)
    for layer, block, (length, count) in zip(layers, blocks, rounds, strict=False):
        one = replace(spec, windows=(spec.windows[layer],), num_layers=1, tie_word_embeddings=False)
        ids = rng.integers(0, spec.vocab_size, size=(1, count), dtype=np.int64)
        caches = _random_caches(one, computed, max_context)
        feeds = [ids, np.array([length], dtype=np.int64), *caches]
        weights = Unread(
            tensors,
            layer,
            cut={HEAD: (head, block.start, block.stop)},
            looked_up={TABLE: sorted({int(token) for token in ids[0]})},
        )
        want = _run_module(Decoder(one, weights).eval(), feeds)
        with one_layer_file(
            path, layer=layer, num_layers=spec.num_layers, rows=block, tables=(tensors[head].name,)
        ) as small:
            session = open_session(small)
            names = [item.name for item in session.get_outputs()]
            got = _run_session(session, feeds)
            del session  # and the weights it mapped
        what = f"layer {layer} of {spec.num_layers}, vocabulary rows {block}"
        where = f"{path.name}, {what}: at context {length} with {count} tokens"
        gap = _largest_gap(where, names, want, got, length + count, computed)
        lines.append(f"{what}, context {length} + {count} rows: worst {gap:.1e} from PyTorch")
    return lines


def _check_features(path: Path, taps: tuple[int, ...]) -> list[str]:
    """The features join the results of the tapped layers, in the order of the taps."""
    wanted = [state_name(tap) for tap in taps]
    found = [name for names in feature_sources(path).values() for name in names]
    if found != wanted:
        raise ExportError(
            f"{path.name}: features are made of {found}, expected {wanted}",
            hint="the exported graph is wrong: a defect of draftrt, please report it",
        )
    return [f"features are the results of layers {list(taps)}"] if taps else []


def _run_module(module: Decoder, feeds: list[Any]) -> list[Any]:
    with torch.no_grad():
        return [tensor.numpy() for tensor in module(*(torch.from_numpy(feed) for feed in feeds))]


def _run_session(session: Any, feeds: list[Any]) -> list[Any]:
    inputs = [item.name for item in session.get_inputs()]
    found: list[Any] = session.run(None, dict(zip(inputs, feeds, strict=True)))
    return found


def _largest_gap(
    where: str, names: list[str], want: list[Any], got: list[Any], used: int, precision: Precision
) -> float:
    """Return the largest difference, relative to each output's largest value, or refuse it."""
    worst = 0.0
    for name, a, b in zip(names, want, got, strict=True):
        if name == "next_ids":
            continue
        a, b = _rows_in_use(a, used), _rows_in_use(b, used)
        gap = float(np.abs(a - b).max()) / max(1.0, float(np.abs(a).max()))
        if not gap <= TOLERANCE[precision]:
            raise ExportError(
                f"{where}: {name} differs from PyTorch by {gap:.2e} (relative to its largest "
                "value)",
                hint="the exported graph is wrong: a defect of draftrt, please report it",
            )
        worst = max(worst, gap)
    return worst


def _rows_in_use(array: Any, rows: int) -> Any:
    """Return the cache rows that hold something; other outputs as they are, in float32."""
    return (array[:, :, :rows] if array.ndim == 4 else array).astype(np.float32)


def _random_caches(spec: DecoderSpec, precision: Precision, max_context: int) -> list[Any]:
    generator = torch.Generator().manual_seed(7)
    made = []
    for layer in range(spec.num_layers):
        groups, dim = spec.cache_shape(layer)
        for _ in range(2):
            content = 0.5 * torch.randn(1, groups, max_context, dim, generator=generator)
            made.append(content.to(TORCH[precision.dtype]).numpy())
    return made
