"""Every initialiser of a graph: name, shape, element type, and where its content comes from.

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
from draftrt.export.checkpoint.safetensors import read_headers
from draftrt.export.checkpoint.tensors import ComputedRef, TensorRef
from draftrt.export.models.decoder_shapes import decoder_shapes
from draftrt.export.models.rope_shapes import PREFIX as ROPE
from draftrt.export.models.rope_shapes import rope_of, table_shapes
from draftrt.export.models.shapes import tensor_shapes
from draftrt.spec import DecoderSpec, DrafterSpec, Precision, RopeSpec

if TYPE_CHECKING:
    import torch

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PREFIX = "model."
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
        dtype: element type in the graph, a NumPy-style name.
        source: unread content, already cut to the shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: TensorRef

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the graph."""
        return BY_NAME[self.dtype].itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type in the graph, as PyTorch calls it."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def read(self) -> torch.Tensor:
        """Return the content in the graph's element type."""
        return self.source.read().to(self.torch_dtype)


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
    refs = _in_words_of_the_graph(read_headers(folder), spec)
    wanted = decoder_shapes(spec)
    findings = _problems(spec, refs, wanted, folder)
    collect(findings)
    made: dict[str, GraphTensor] = {}
    for name, shape in wanted.items():
        ref = refs[TABLE if name == HEAD and HEAD not in refs else name]
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
    if spec.gemma4 is None or spec.gemma4.tensor_prefix == PREFIX:
        return refs
    prefix = spec.gemma4.tensor_prefix
    text = {
        PREFIX + name[len(prefix) :]: ref for name, ref in refs.items() if name.startswith(prefix)
    }
    return text | {name: refs[name] for name in (HEAD,) if name in refs}


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
