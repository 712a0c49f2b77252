"""The gate for large models: rows of every weight, and a few layers whole.

The layers of a graph are the same nodes (`draftrt.export.layers`), so what can be wrong in one and
right in another is its weights. Of every weight a few rows are compared with the checkpoint. The
first, a middle and the last layer then run on ONNX Runtime, each between the graph's own beginning
and end, against the PyTorch module, the vocabulary's tables by a block of rows a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.errors import ExportError
from draftrt.export.assemble import empty_caches
from draftrt.export.check import (
    compare_round,
    open_session,
    run_module,
    run_session,
)
from draftrt.export.check_ids import CHOSEN_FROM
from draftrt.export.drafter import Drafter, SampledDrafter
from draftrt.export.graph_tensors import GraphTensor
from draftrt.export.one_layer import Rows, write_one_layer
from draftrt.export.quantized_file import QuantizedRef
from draftrt.export.signature import round_feeds, walk_to_compare
from draftrt.export.unread import Unread
from draftrt.signature import Signature
from draftrt.spec import DrafterSpec, Precision, VocabMap

FULL_CHECK_BYTES = 1 << 28  # weights of a graph up to which it is computed whole
BLOCK_ROWS = 2048  # of the vocabulary
TABLES = ("lm_head.weight", "markov_head.markov_w2.weight", "d2t")
SAMPLED = 3  # rows of each weight: first, middle, last


def is_small(tensors: Mapping[str, GraphTensor]) -> bool:
    """Return whether a graph's weights are few enough to compute all of it."""
    return sum(tensor.source.num_bytes for tensor in tensors.values()) <= FULL_CHECK_BYTES


def sampled_layers(count: int) -> tuple[int, ...]:
    """Return the layers that are computed."""
    return tuple(sorted({0, count // 2, count - 1}))


def row_blocks(rows: int, count: int) -> list[Rows]:
    """Return blocks of a table's rows spread from the first to the last."""
    width = min(rows, BLOCK_ROWS)
    starts = [round((rows - width) * i / max(1, count - 1)) for i in range(count)]
    return [Rows(start, start + width) for start in starts]


def check_weights(path: Path, tensors: Mapping[str, GraphTensor]) -> int:
    """Compare a few rows of every weight of a written graph with its source.

    Returns:
        Weights compared.

    Raises:
        ExportError: lists weights of another type, shape or content.
    """
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    wrong = []
    # Quantised ones are read from this very file; `check_channels` has compared them.
    copied = {n: one for n, one in tensors.items() if not isinstance(one.source, QuantizedRef)}
    for name, tensor in copied.items():
        # A head that is the embedding has no initialiser of its own.
        problem = _weight_problem(path.parent, stored.get(name, stored.get(tensor.name)), tensor)
        if problem:
            wrong.append(f"{name}: {problem}")
    if wrong:
        raise ExportError(
            f"{path.name}: weights that are not the checkpoint's: {'; '.join(wrong[:5])}",
            hint="a defect of draftrt, or the checkpoint was changed meanwhile; export again",
        )
    return len(tensors)


def _weight_problem(folder: Path, stored: Any, tensor: GraphTensor) -> str:
    import onnx

    if stored is None:
        return "is missing"
    if tuple(stored.dims) != tuple(tensor.shape):
        return f"has shape {list(stored.dims)}, expected {list(tensor.shape)}"
    if not stored.external_data:
        found = onnx.numpy_helper.to_array(stored).tobytes()
        wanted = _bytes(tensor, 0, tensor.shape[0] if tensor.shape else 1)
        return "" if found == wanted else "has other content"
    place = {entry.key: entry.value for entry in stored.external_data}
    rows = tensor.shape[0]
    width = int(place["length"]) // rows
    with (folder / place["location"]).open("rb") as stream:
        for row in sorted({round((rows - 1) * i / (SAMPLED - 1)) for i in range(SAMPLED)}):
            stream.seek(int(place["offset"]) + row * width)
            if stream.read(width) != _bytes(tensor, row, row + 1):
                return f"row {row} has other content"
    return ""


def _bytes(tensor: GraphTensor, start: int, stop: int) -> bytes:
    source = tensor.source.rows(start, stop) if tensor.shape else tensor.source
    content = source.read().to(tensor.torch_dtype).contiguous()
    return content.reshape(-1).view(torch.uint8).numpy().tobytes()


@contextmanager
def one_layer_file(source: Path, **about: Any) -> Iterator[Path]:
    """Give the graph of one layer beside the graph it is made from, and remove it."""
    path = source.with_name(f".{source.stem}.one-layer.onnx")
    try:
        write_one_layer(source, path, **about)
        yield path
    finally:
        path.unlink(missing_ok=True)


def check_draft_sampled(
    path: Path,
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    signature: Signature,
    precision: Precision,
    max_context: int,
) -> list[str]:
    """Compare a large draft graph with its module; see the top of this file.

    Returns:
        One line for all weights and one a layer that was computed.

    Raises:
        ExportError: a weight's bytes differ, or ids, confidences or caches beyond the tolerance.
    """
    lines = [f"rows of all {check_weights(path, tensors)} weights are the checkpoint's"]
    computed = Precision.FP32 if precision is Precision.BF16 else precision
    walk = walk_to_compare(signature, computed)
    rng = np.random.default_rng(0)
    longest = max_context - spec.block_size
    rounds = [(0, 1), (min(37, longest - 5), 5), (longest - 2, 2)]
    layers = sampled_layers(spec.num_layers)
    is_cut = walk is None or spec.vocab_map is VocabMap.IDENTITY
    is_cut = is_cut and not isinstance(tensors["lm_head.weight"].source, QuantizedRef)
    rows = tensors["lm_head.weight"].shape[0]
    blocks = row_blocks(rows, len(layers)) if is_cut else [Rows(0, rows)] * len(layers)
    kind = Drafter if walk is None else SampledDrafter
    for layer, block, (length, new) in zip(layers, blocks, rounds, strict=False):
        one = replace(spec, layers=(spec.layers[layer],), num_layers=1)
        feeds = round_feeds(spec, rng, new_rows=new, context_length=length, walk=walk)
        if "noise" in feeds and spec.selector is None:
            feeds["noise"] = feeds["noise"][..., : len(block)]
        ids = {int(feeds["anchor"][0]), spec.mask_token_id if not spec.mask_embedding else 0}
        weights = Unread(
            tensors,
            layer,
            cut={name: (name, block.start, block.stop) for name in TABLES},
            looked_up={"embed_tokens.weight": sorted(ids)},
        )
        caches = [
            cache.normal_(std=0.5, generator=torch.Generator().manual_seed(7)).numpy()
            for cache in empty_caches(one, computed, max_context)
        ]
        want = run_module(kind(one, weights, extra_outputs=CHOSEN_FROM).eval(), feeds, caches)
        with one_layer_file(
            path, layer=layer, num_layers=spec.num_layers, rows=block, tables=TABLES
        ) as small:
            got, caches = run_session(open_session(small), feeds, caches)
        what = f"layer {layer} of {spec.num_layers}, vocabulary rows {block}"
        compare_round(f"{path.name}, {what}", one, want, got, caches, (length, new), computed)
        twin = ", in float32" if precision is Precision.BF16 else ""
        lines.append(f"{what}, context {length} + {new} rows: same as PyTorch{twin}")
    return lines
