"""What a drafter and a target are: frozen facts, each with the place it was read from.

No framework and no file access here. `export/config/drafter.py` fills these from a checkpoint; the
manifest of a bundle stores them; every later stage reads them from there and nowhere else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from draftrt.errors import SpecError
from draftrt.parts import (
    Backbone,
    ConfidenceSpec,
    ConvSpec,
    Family,
    LayerSpec,
    MarkovSpec,
    Precision,
    RopeLayout,
    RopeSpec,
    SelectorSpec,
    TableSource,
    VocabMap,
    WindowEdge,
)

__all__ = [
    "Backbone",
    "ConfidenceSpec",
    "ConvSpec",
    "DecoderSpec",
    "DrafterSpec",
    "Family",
    "Gemma4Spec",
    "LayerSpec",
    "MarkovSpec",
    "Precision",
    "RopeLayout",
    "RopeSpec",
    "SelectorSpec",
    "TableSource",
    "TargetSpec",
    "VocabMap",
    "WindowEdge",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The facts of a target that a drafter depends on.

    Attributes:
        architecture: first entry of ``architectures``.
        model_type: of the text model.
        num_layers: decoder layers.
        hidden_size: width of the residual stream.
        vocab_size: logical vocabulary; ids at or above it are never drafted.
        table_rows: physical rows of its embedding table; None when no table was looked at.
        tie_word_embeddings: whether the LM head is the embedding table.
        eos_token_ids: ids that end a text.
        sources: field name to the place it was read from.
    """

    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    table_rows: int | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a fact without a source."""
        _check_sources(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Spec:
    """What the layers of a Gemma-4 target have beyond those of other decoders.

    Sliding layers are as the `DecoderSpec` says; full ones have heads and angles of their own.

    Attributes:
        full_head_dim: D of the full layers.
        full_num_kv_heads: G of the full layers.
        full_key_is_value: values of the full layers are their raw key projection (no ``v_proj``).
        full_rope: rotary embedding of the full layers.
        embedding_scale: factor on the rows of the embedding table.
        final_logit_softcapping: c of ``c * tanh(logits / c)``; None for none.
        tensor_prefix: what the checkpoint puts before ``layers.0`` and ``embed_tokens``.
    """

    full_head_dim: int
    full_num_kv_heads: int
    full_key_is_value: bool
    full_rope: RopeSpec
    embedding_scale: float
    final_logit_softcapping: float | None
    tensor_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A target as a dense decoder that can be exported, completely described.

    Attributes:
        hidden_size: H.
        intermediate_size: MLP width.
        num_layers: decoder layers.
        num_heads: query heads N.
        num_kv_heads: key/value heads G.
        head_dim: D.
        rms_norm_eps: epsilon of every RMSNorm.
        activation: MLP activation, named as in transformers.
        qkv_bias: whether q, k and v projections have biases.
        output_bias: whether the attention output projection has a bias.
        mlp_bias: whether the MLP projections have biases.
        qk_norm: whether queries and keys are normed a head.
        rope: rotary embedding.
        windows: sliding window of each layer in tokens, the token itself included; None for full.
        tie_word_embeddings: whether the LM head is the embedding table.
        vocab_size: logical vocabulary; logits have this many columns.
        table_rows: rows of the embedding table.
        gemma4: what Gemma-4 layers add; None for every other architecture.
        sources: field name to the place it was read from.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeSpec
    windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    vocab_size: int
    table_rows: int
    gemma4: Gemma4Spec | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a fact without a source."""
        _check_sources(self)

    def cache_shape(self, layer: int) -> tuple[int, int]:
        """Return G and D of a layer's keys and values."""
        if self.gemma4 is not None and self.windows[layer] is None:
            return self.gemma4.full_num_kv_heads, self.gemma4.full_head_dim
        return self.num_kv_heads, self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpec:
    """One block drafter, completely described.

    Attributes:
        family: how a block is drafted.
        backbone: flavour of its layers.
        checkpoint_format: publisher's layout the facts were read from.
        dtype: element type of the checkpoint.
        hidden_size: H.
        intermediate_size: MLP width.
        num_layers: L.
        num_heads: query heads N.
        num_kv_heads: key/value heads G.
        head_dim: D.
        rms_norm_eps: epsilon of every RMSNorm.
        activation: MLP activation, named as in transformers.
        attention_bias: whether q, k, v and o projections have biases.
        attention_scale: factor on the attention scores.
        attention_k_eq_v: whether values are the raw key projection (no ``v_proj``).
        attention_value_scale: factor on the values.
        rope: rotary embedding.
        layers: visibility rules, one a layer.
        block_size: K, rows fed in a round, the anchor included.
        sample_from_anchor: whether row 0 yields a draft too (rows predict the next position).
        target_layer_ids: output of decoder layer k, 0-based, in concatenation order; -1 is the
            embedding output.
        num_target_layers: target depth the checkpoint declares; None when it does not.
        target_hidden_size: width of one tapped hidden state.
        mask_token_id: id that fills rows 1...
        input_vocab_size: rows of the embedding table in use.
        draft_vocab_size: rows of the LM head in use, Vd.
        target_vocab_size: the target's logical vocabulary V; None without a target.
        vocab_map: how draft ids become target ids.
        embed_source: whose embedding table is used.
        head_source: whose LM head is used.
        mask_embedding: whether a vector of its own replaces the mask token's row.
        embedding_scale: factor on embedded block rows.
        output_multiplier: factor on logits before the soft cap.
        final_logit_softcapping: c of ``c * tanh(z / c)``; None for off.
        markov: Markov head, if any.
        confidence: confidence head, if any.
        selector: candidate selector, if any.
        conv: dynamic convolution, if any.
        sources: field name to the place it was read from; one entry for every field.
        warnings: what a user should know and that is no error.
    """

    family: Family
    backbone: Backbone
    checkpoint_format: str
    dtype: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    attention_bias: bool
    attention_scale: float
    attention_k_eq_v: bool
    attention_value_scale: float
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]
    block_size: int
    sample_from_anchor: bool
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    target_hidden_size: int
    mask_token_id: int
    input_vocab_size: int
    draft_vocab_size: int
    target_vocab_size: int | None
    vocab_map: VocabMap
    embed_source: TableSource
    head_source: TableSource
    mask_embedding: bool
    embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    markov: MarkovSpec | None
    confidence: ConfidenceSpec | None
    selector: SelectorSpec | None
    conv: ConvSpec | None
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a fact without a source."""
        _check_sources(self)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens proposed a round: ``block_size`` from the anchor on, else one fewer."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def feature_size(self) -> int:
        """Width of the concatenated context features, m * H_t."""
        return len(self.target_layer_ids) * self.target_hidden_size

    @property
    def is_reduced(self) -> bool:
        """Whether the draft vocabulary is smaller than the target's."""
        if self.target_vocab_size is None:
            return self.vocab_map is not VocabMap.IDENTITY
        return self.draft_vocab_size < self.target_vocab_size

    @property
    def num_padded_rows(self) -> int:
        """LM-head rows beyond the target's logical vocabulary; never drafted."""
        if self.target_vocab_size is None:
            return 0
        return max(0, self.draft_vocab_size - self.target_vocab_size)


def _check_sources(spec: TargetSpec | DecoderSpec | DrafterSpec) -> None:
    facts = {f.name for f in dataclasses.fields(spec)} - {"sources", "warnings"}
    missing, unknown = sorted(facts - set(spec.sources)), sorted(set(spec.sources) - facts)
    if missing or unknown:
        raise SpecError(
            f"{type(spec).__name__}: facts without a source {missing}, "
            f"sources without a fact {unknown}"
        )
