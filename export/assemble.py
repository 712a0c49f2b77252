"""From a checked drafter to the tensors of a graph: names, shapes, dtypes, contents.

One table serves the traced module (placeholders), the reference module (contents) and the weights
file of a bundle, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.export import rope
from draftrt.export.checkpoint import TensorRef, from_array
from draftrt.export.drafter import Drafter, SampledDrafter
from draftrt.export.ops import Profile
from draftrt.export.shapes import tensor_shapes
from draftrt.spec import DrafterSpec, Precision

TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
}
SMALL_HEADS = (
    "confidence_head.",
    "markov_head.gate_proj.",
    "markov_head.joint_proj.",
    "candidate_selector.hidden_projection.",
)
ALWAYS_FP32 = (
    "norm.weight",
    "layernorm.weight",
    "layer_scalar",
    "base_kernel",
    "attention_sink_bias",
    "mask_embedding",
)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One initialiser of a graph.

    Attributes:
        name: canonical name, kept in the ONNX file.
        shape: its shape in the graph.
        dtype: element type in the graph.
        source: unread content, already cut to the shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: TensorRef


def graph_dtype(name: str, precision: Precision) -> torch.dtype:
    """Return the element type of an initialiser.

    16-bit graphs keep in float32 what is small and sensitive: norms, rotary tables, the small
    projections of the heads and, in fp16, ``fc``, whose output overflows on real target features
    (values above 2e4 are common).
    """
    if name == "d2t":
        return torch.int64
    if (
        precision is Precision.FP32
        or name.startswith(("rope.", *SMALL_HEADS))
        or name.endswith(ALWAYS_FP32)
    ):
        return torch.float32
    if name == "fc.weight" and precision is Precision.FP16:
        return torch.float32
    return TORCH[precision.dtype]


def graph_tensors(
    spec: DrafterSpec, tensors: Mapping[str, TensorRef], precision: Precision, max_context: int
) -> dict[str, GraphTensor]:
    """Return every initialiser of a drafter's graph by name.

    The LM head and the Markov output table are cut to the ids that may be drafted, which is how
    padded rows are kept out of every argmax and top-k.
    """
    wanted = tensor_shapes(spec)
    limit = spec.draft_vocab_size - spec.num_padded_rows
    made: dict[str, GraphTensor] = {}
    for name in wanted:
        ref = tensors[name]
        if name in ("lm_head.weight", "markov_head.markov_w2.weight") and ref.shape[0] > limit:
            ref = ref.rows(0, limit)
        made[name] = GraphTensor(name, ref.shape, graph_dtype(name, precision), ref)
    for name, table in rope.table_tensors(spec.rope, max_context).items():
        made[name] = GraphTensor(name, table.shape, torch.float32, from_array(name, table))
    return made


def reference_module(
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    *,
    extra_outputs: tuple[str, ...] = (),
    profile: Profile = Profile.FIXED,
    is_sampled: bool = False,
) -> Drafter:
    """Return the module with its contents loaded, ready to compute in eager mode."""
    contents = {name: tensor.source.read().to(tensor.dtype) for name, tensor in tensors.items()}
    kind = SampledDrafter if is_sampled else Drafter
    return kind(spec, contents, profile=profile, extra_outputs=extra_outputs).eval()


def empty_caches(spec: DrafterSpec, precision: Precision, max_context: int) -> list[Tensor]:
    """Return zeroed caches, keys and values of each layer in turn, [1, G, L, D]."""
    shape = (1, spec.num_kv_heads, max_context, spec.head_dim)
    return [torch.zeros(shape, dtype=TORCH[precision.dtype]) for _ in range(2 * spec.num_layers)]
