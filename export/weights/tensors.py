"""Every initialiser of a graph: name, shape, element type, bits, and where its content comes from.

Every initialiser of a graph: name, shape, element type, and where its content comes from.

One table serves the traced module (placeholders), the reference module (contents) and the weights
file of a bundle, so they cannot disagree. Nothing here loads PyTorch before a content is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.dtypes import BY_NAME, FLOATS
from draftrt.errors import CheckpointError, collect
from draftrt.export.checkpoint.names import beside_text
from draftrt.export.checkpoint.safetensors import read_tensors
from draftrt.export.checkpoint.tensors import ComputedRef, GraphTensor, TensorRef
from draftrt.export.models.shapes import PREFIX as ROPE
from draftrt.export.models.shapes import (
    decoder_shapes,
    rope_of,
    stateful,
    table_shapes,
    tensor_shapes,
)
from draftrt.quantization import (
    HEAD,
    TABLES,
    Base,
    Part,
    Quantization,
    Scheme,
    block_of,
    bytes_of,
    part_of,
)
from draftrt.spec import DecoderSpec, DrafterSpec, Precision, RopeSpec

if TYPE_CHECKING:
    import torch


TABLE, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
PREFIX = "model."
LFM2_NAMES = (  # part of a name: LFM2's, and a plain decoder's
    ("model.embedding_norm.", "model.norm."),
    (".operator_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".q_layernorm.", ".q_norm."),
    (".k_layernorm.", ".k_norm."),
)
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
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.conv1d.weight",
    "conv.conv.weight",
    "linear_attn.in_proj_a.weight",
    "linear_attn.in_proj_b.weight",
)


def graph_dtype(name: str, precision: Precision) -> str:
    """Return the element type of an initialiser.

    16-bit graphs keep in float32 what is small and sensitive: norms, rotary tables, the small
    projections of the heads and, in fp16, ``fc``, whose output overflows on real target features
    (values above 2e4 are common).
    """
    if name == "d2t":
        return "int64"
    if (
        precision is Precision.FP32
        or name.startswith(("rope.", *SMALL_HEADS))
        or name.endswith(ALWAYS_FP32)
    ):
        return "float32"
    if name == "fc.weight" and precision is Precision.FP16:
        return "float32"
    return precision.dtype


def draft_tensors(
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
    return made | rope_tensors(spec.rope, max_context)


def target_tensors(
    spec: DecoderSpec, folder: Path, precision: Precision, max_context: int
) -> dict[str, GraphTensor]:
    """Return every initialiser of a target's graph, from its checkpoint.

    Raises:
        CheckpointError: tensors missing, left over or of another shape; all at once.
    """
    refs = _in_words_of_the_graph(read_tensors(folder), spec)
    wanted = decoder_shapes(spec)
    findings = _problems(spec, refs, wanted, folder)
    collect(findings)
    made: dict[str, GraphTensor] = {}
    for name, shape in wanted.items():
        ref = refs[TABLE if name == LM_HEAD and LM_HEAD not in refs else name]
        if ref.shape[0] > shape[0]:
            ref = ref.rows(0, shape[0])
        made[name] = GraphTensor(name, shape, graph_dtype(name, precision), ref)
    for window in dict.fromkeys(spec.windows):
        embedding, prefix = rope_of(spec, window)
        made |= rope_tensors(embedding, max_context, prefix)
    return made


def _in_words_of_the_graph(
    refs: Mapping[str, TensorRef], spec: DecoderSpec
) -> Mapping[str, TensorRef]:
    """Return the text model's tensors by the names of a plain decoder.

    A checkpoint that also sees or hears keeps the rest beside its text model.
    """
    if spec.short_conv is not None:
        refs = {_of_lfm2(name): ref for name, ref in refs.items()}
    facts = spec.gemma4 or spec.muse or stateful(spec)
    if facts is None or (facts.tensor_prefix == PREFIX and spec.delta is None):
        return refs
    prefix = facts.tensor_prefix
    text = {
        PREFIX + name[len(prefix) :]: ref for name, ref in refs.items() if name.startswith(prefix)
    }
    if spec.gemma4 is not None:
        return text | {name: refs[name] for name in (LM_HEAD,) if name in refs}
    beside = beside_text(refs)
    rest = {name: ref for name, ref in refs.items() if not name.startswith(prefix)}
    return text | {name: ref for name, ref in rest.items() if name not in beside}


def _of_lfm2(name: str) -> str:
    """Return the plain decoder's name of one of LFM2's tensors."""
    for own, plain in LFM2_NAMES:
        name = name.replace(own, plain)
    return name


def _problems(
    spec: DecoderSpec,
    refs: Mapping[str, TensorRef],
    wanted: Mapping[str, tuple[int, ...]],
    folder: Path,
) -> list[CheckpointError]:
    missing = [
        name
        for name in wanted
        if name not in refs and not (name == LM_HEAD and spec.tie_word_embeddings)
    ]
    extra = [
        name
        for name in refs
        if name not in wanted and "rotary_emb" not in name and name not in (LM_HEAD, TABLE)
    ]
    wrong = [
        f"{name} is {refs[name].dtype} {list(refs[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in refs
        and name != LM_HEAD
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


def rope_tensors(
    embedding: RopeSpec, max_context: int, prefix: str = ROPE
) -> dict[str, GraphTensor]:
    """Return the constants of a rotary embedding, computed once when the first is read."""

    @cache
    def contents() -> Mapping[str, torch.Tensor]:
        import torch

        from draftrt.export.models.rope import table_tensors

        made = table_tensors(embedding, max_context, prefix)
        return {name: torch.from_numpy(table) for name, table in made.items()}

    def table(name: str, shape: tuple[int, ...]) -> GraphTensor:
        ref = ComputedRef(name, "float32", shape, compute=lambda: contents()[name])
        return GraphTensor(name, shape, "float32", ref)

    shapes = table_shapes(embedding, max_context, prefix)
    return {name: table(name, shape) for name, shape in shapes.items()}


def is_quantised(name: str, tensors: Mapping[str, GraphTensor], quantization: Quantization) -> bool:
    """Return whether every use of a weight is quantised; a tied table has two."""
    if tensors[name].kept is not None:
        return True
    if name in TABLES:
        is_tied = HEAD not in tensors
        return Part.EMBEDDING in quantization and (not is_tied or Part.HEAD in quantization)
    return part_of(name, is_product=True) in quantization


def quantised_bytes(
    name: str, tensors: Mapping[str, GraphTensor], quantization: Quantization
) -> int:
    """Return the bytes of codes and scales of a weight's product or lookup, 0 for others.

    A table is multiplied with only where no head stands beside it.
    """
    total, tensor = 0, tensors[name]
    if tensor.kept is not None:
        rows, width = tensor.shape
        groups = 1 if tensor.kept.block is None else width // tensor.kept.block
        each = tensor.itemsize + (base_itemsize(tensor) if tensor.kept.base else 0)
        return bytes_of(rows * width, tensor.kept.scheme) + rows * groups * each
    is_looked_up = name in TABLES and HEAD in tensors
    for is_product in (False,) if is_looked_up else (True, False):
        part = part_of(name, is_product=is_product)
        if part is None or part not in quantization:
            continue
        rows, width = tensor.shape
        scheme = quantization[part]
        count = rows if scheme is not Scheme.INT4 else rows * (width // block_of(name, width))
        total += bytes_of(rows * width, scheme) + count * tensor.itemsize
    return total


INT4_OPSET = 21  # the first with blocks and 4-bit integers
# appended to a weight's name; the order is that in which a product gathers its inputs
CODES, SCALES, ORDER = ".codes", ".scales", ".order"
BASES = {f".{base.value}": base for base in Base if base}
ZEROS_DTYPE = "float16"  # holds the integers, whatever the graph's element type


def base_dtype(tensor: GraphTensor) -> str:
    """Return the element type of what is added to the codes of a weight."""
    is_integer = tensor.kept is not None and tensor.kept.base is Base.ZEROS
    return ZEROS_DTYPE if is_integer else tensor.dtype


def base_itemsize(tensor: GraphTensor) -> int:
    """Return the bytes of an element of that."""
    return BY_NAME[base_dtype(tensor)].itemsize


@dataclass(frozen=True, slots=True)
class QuantizedUse:
    """One quantised weight of a rewritten graph, not yet written.

    Attributes:
        name: of the weight; its initialisers are called ``name + CODES`` and ``name + SCALES``.
        tensor: the weight [out, in], unread.
        scheme: how it is quantised.
        is_product: stored as [in, out], the order a product reads; a table stays [rows, width].
    """

    name: str
    tensor: GraphTensor
    scheme: Scheme
    is_product: bool

    @property
    def block(self) -> int | None:
        """Elements of the reduction axis that share a scale; None for one a channel."""
        if self.tensor.kept is not None:
            return self.tensor.kept.block
        if self.scheme is not Scheme.INT4:
            return None
        return block_of(self.name, self.tensor.shape[1])

    @property
    def base(self) -> Base:
        """What is added to the codes."""
        return Base.NONE if self.tensor.kept is None else self.tensor.kept.base

    @property
    def codes_shape(self) -> tuple[int, ...]:
        """Shape of the codes, as the graph calls them."""
        return self.tensor.shape[::-1] if self.is_product else self.tensor.shape

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """Shape of the scales."""
        rows, width = self.tensor.shape
        return (rows,) if self.block is None else (width // self.block, rows)

    @property
    def base_shape(self) -> tuple[int, int]:
        """Shape of what is added."""
        rows, width = self.tensor.shape
        return (1 if self.block is None else width // self.block, rows)
