"""The pieces that descriptions of models are made of: enums, rotary embedding, layers, heads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
