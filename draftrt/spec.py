"""What a drafter and a target are: frozen facts, each with the place it was read from.

No framework and no file access here. `export/config/drafter.py` fills these from a checkpoint; the
manifest of a bundle stores them; every later stage reads them from there and nowhere else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum

from draftrt.errors import SpecError


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
class MuseSpec:
    """What a Muse-Glimmer target has beyond other decoders; it norms embedded rows for itself only.

    Attributes:
        sliding_has_rope, full_has_rope: whether layers of that type turn queries and keys.
        post_norm_eps: epsilon of the norms behind attention and MLP.
        query_scale: factor on normed queries, beside head_dim ** -0.5.
        output_multiplier, final_logit_softcapping: factor on logits, then c of c * tanh(z / c).
        tensor_prefix: what the checkpoint puts before ``layers.0`` and ``embed_tokens``.
    """

    sliding_has_rope: bool
    full_has_rope: bool
    post_norm_eps: float
    query_scale: float
    output_multiplier: float
    final_logit_softcapping: float
    tensor_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """Layers of a target that keep a state: the gated delta rule of Qwen3.5.

    Attributes:
        layers: which ones, ascending.
        num_key_heads, num_value_heads, key_dim, value_dim: heads and their sizes.
        kernel_size: rows that the convolution reads.
        carried_rows: rows of a call that can be taken back.
        tensor_prefix: what the checkpoint puts before ``layers.0`` and ``embed_tokens``.
    """

    layers: tuple[int, ...]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    carried_rows: int
    tensor_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """Layers of a target that convolve over the last few rows in place of attention: LFM2.

    Attributes:
        layers, carried_rows, tensor_prefix: as in `GatedDeltaSpec`.
        kernel_size: rows that the convolution reads.
        has_bias: whether the convolution and its projections have biases.
    """

    layers: tuple[int, ...]
    kernel_size: int
    has_bias: bool
    carried_rows: int
    tensor_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A target as a dense decoder that can be exported, completely described.

    Attributes:
        hidden_size: H.
        intermediate_size: MLP width.
        num_layers: decoder layers.
        num_heads, num_kv_heads, head_dim: N of queries, G of keys and values, of D elements.
        rms_norm_eps: epsilon of every RMSNorm.
        activation: MLP activation, named as in transformers.
        qkv_bias, output_bias, mlp_bias: whether these projections have biases.
        qk_norm: whether queries and keys are normed a head.
        rope: rotary embedding.
        windows: sliding window of each layer in tokens, the token itself included; None for full.
        tie_word_embeddings: whether the LM head is the embedding table.
        vocab_size: logical vocabulary; logits have this many columns.
        table_rows: rows of the embedding table.
        gemma4, muse, delta, short_conv: what these architectures add; None for every other.
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
    muse: MuseSpec | None = None
    delta: GatedDeltaSpec | None = None
    short_conv: ShortConvSpec | None = None
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
        hidden_size, intermediate_size, num_layers: H, the MLPs' width, L.
        num_heads, num_kv_heads, head_dim: N of queries, G of keys and values, of D elements.
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
        input_vocab_size, draft_vocab_size: rows of embedding table and LM head in use; V_d.
        target_vocab_size: the target's logical vocabulary V; None without a target.
        vocab_map: how draft ids become target ids.
        embed_source, head_source: whose embedding table and LM head are used.
        mask_embedding: whether a vector of its own replaces the mask token's row.
        embedding_scale: factor on embedded block rows.
        output_multiplier: factor on logits before the soft cap.
        final_logit_softcapping: c of ``c * tanh(z / c)``; None for off.
        markov, confidence, selector, conv: those heads and the dynamic convolution, if any.
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


class Family(str, Enum):
    """How a block is drafted."""

    DFLASH = "dflash"
    DFLASH2 = "dflash2"
    DSPARK = "dspark"


class Backbone(str, Enum):
    """The transformer layers of a drafter."""

    QWEN3 = "qwen3"
    GEMMA4 = "gemma4"


class Precision(str, Enum):
    """Element type of weights and caches in a graph; sensitive parts stay in float32."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def dtype(self) -> str:
        """NumPy-style name of the element type."""
        return {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[self.value]

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 4 if self is Precision.FP32 else 2


class RopeLayout(str, Enum):
    """Which elements of a head rotate together: (i, i + d/2) or (2i, 2i + 1)."""

    NEOX = "neox"
    INTERLEAVED = "interleaved"


class WindowEdge(str, Enum):
    """Where a sliding window is counted from.

    QUERY: a key j is seen from position p while ``p - j < window`` (and ``j - p < window`` in a
    non-causal layer). ANCHOR: context keys ``j >= s - window`` for every row of the block that
    starts at s, block keys regardless of the window.
    """

    QUERY = "query"
    ANCHOR = "anchor"


class TableSource(str, Enum):
    """Whose checkpoint holds an embedding table or LM head."""

    DRAFT = "draft"
    TARGET = "target"


class VocabMap(str, Enum):
    """How draft ids become target ids: unchanged, ``id + d2t[id]``, or ``d2t[id]``."""

    IDENTITY = "identity"
    OFFSET = "offset"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding of a model.

    Attributes:
        layout: which elements rotate together.
        theta: base of the geometric frequencies.
        type: scaling rule, named as in transformers (``default``, ``linear``, ``dynamic``,
            ``yarn``, ``llama3``, ``longrope``, ``proportional``).
        rotary_dim: rotated elements of a head, from the front.
        head_dim: elements of a head.
        max_position_embeddings: positions the checkpoint declares.
        factor: scaling factor; meaning by type.
        original_max_position_embeddings: positions before scaling.
        attention_factor: multiplies cos and sin where the type has one; None: the type's formula.
        beta_fast: yarn ramp bound in rotations.
        beta_slow: yarn ramp bound in rotations.
        mscale: yarn attention-factor numerator of some publishers.
        mscale_all_dim: yarn attention-factor denominator of the same.
        truncate: whether yarn floors and ceils its ramp bounds.
        low_freq_factor: llama3 wavelength bound.
        high_freq_factor: llama3 wavelength bound.
        short_factor: longrope divisor of each frequency within the original positions.
        long_factor: the same beyond them.
        partial_rotary_factor: share of the head that really rotates under ``proportional``.
    """

    layout: RopeLayout
    theta: float
    type: str
    rotary_dim: int
    head_dim: int
    max_position_embeddings: int
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    partial_rotary_factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What the queries of one drafter layer may see.

    Attributes:
        is_causal: whether a block row sees only rows up to itself.
        window: sliding window in tokens; None for full attention.
        window_edge: where the window is counted from.
        has_sink: whether each head has a learned sink logit in the softmax's denominator.
    """

    is_causal: bool
    window: int | None = None
    window_edge: WindowEdge = WindowEdge.QUERY
    has_sink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovSpec:
    """Markov head: a bias on each draft's logits from the draft before it.

    Attributes:
        type: ``vanilla``, ``gated`` or ``rnn``.
        rank: width of the previous token's embedding.
    """

    type: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceSpec:
    """Confidence head: probability that a draft survives, given that the ones before it did.

    Attributes:
        with_markov: whether its input also holds the previous token's Markov embedding.
        has_bias: whether the projection has a bias.
    """

    with_markov: bool
    has_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSpec:
    """DFlash2 candidate selector.

    Attributes:
        rank: width of its codebooks.
        top_k: candidates a row.
    """

    rank: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec:
    """DFlash2 grouped dynamic causal convolution around attention and MLP.

    Attributes:
        kernel_size: taps, the row itself included.
        group_size: channels that share a dynamic coefficient.
    """

    kernel_size: int
    group_size: int


class Profile(str, Enum):
    """Which ONNX operators a traced graph may use."""

    FIXED = "fixed"
    COMPAT = "compat"

    @property
    def opset(self) -> int:
        """ONNX opset version of the profile."""
        return 24 if self is Profile.FIXED else 20
