"""Descriptions of toy checkpoints: sizes and heads, nothing about files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray

REMOVED: Any = object()  # as an override: take the key out


class Kind(str, Enum):
    """Publisher's format and family of a toy drafter."""

    ZLAB_DFLASH = "zlab-dflash"
    ZLAB_DFLASH2 = "zlab-dflash2"
    DEEPSPEC_DFLASH = "deepspec-dflash"
    DEEPSPEC_DSPARK = "deepspec-dspark"
    DEEPSPEC_GEMMA4 = "deepspec-gemma4"
    SPECULATORS_DFLASH = "speculators-dflash"
    SPECULATORS_DFLASH2 = "speculators-dflash2"
    SPECULATORS_DSPARK = "speculators-dspark"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyTarget:
    """A Qwen3 target.

    Attributes:
        vocab_size: logical vocabulary, at least the tokenizer's 260.
        hidden_size: width H_t.
        intermediate_size: MLP width.
        num_layers: depth.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: elements of a head.
        tie_word_embeddings: whether the LM head is the embedding table.
        dtype: element type of the file.
        seed: of the weights.
    """

    vocab_size: int = 264
    hidden_size: int = 40
    intermediate_size: int = 72
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    tie_word_embeddings: bool = False
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyDrafter:
    """A drafter for `ToyTarget`'s defaults.

    Attributes:
        kind: format and family.
        hidden_size: width H.
        intermediate_size: MLP width.
        num_layers: depth.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: elements of a head (of a global layer for Gemma-4).
        block_size: rows of a block, the anchor included.
        mask_token_id: id of the rows behind the anchor.
        target_layer_ids: tapped layers, output of decoder layer k, 0-based.
        num_target_layers: depth of the target that the config declares.
        vocab_size: the target's vocabulary.
        draft_vocab_size: rows of the LM head; None: ``vocab_size``. Below it (speculators only) the
            checkpoint gets its own lm_head, d2t and t2d.
        sliding_window: window of the layers with an even index; None: full attention everywhere.
        rope: rotary parameters as transformers 5 spells them.
        attention_bias: whether the projections have biases.
        markov_type: ``vanilla``, ``gated`` or ``rnn`` (DSpark).
        markov_rank: width of the Markov embedding (DSpark).
        with_confidence: whether there is a confidence head (DSpark).
        sample_from_anchor: alignment that speculators' config states.
        dtype: element type of the file.
        num_shards: safetensors files; above one with an index.
        seed: of the weights.
        overrides: config keys to set, dots for nested ones; `REMOVED` takes a key out.
        omit: tensors to leave out.
        extra: tensors to add or replace, by name.
    """

    kind: Kind
    hidden_size: int = 40
    intermediate_size: int = 56
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    mask_token_id: int = 259
    target_layer_ids: tuple[int, ...] = (1, 3, 4)
    num_target_layers: int = 6
    vocab_size: int = 264
    draft_vocab_size: int | None = None
    sliding_window: int | None = None
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    attention_bias: bool = False
    markov_type: str = "vanilla"
    markov_rank: int = 12
    with_confidence: bool = True
    sample_from_anchor: bool = True
    dtype: str = "float32"
    num_shards: int = 1
    seed: int = 1
    overrides: Mapping[str, Any] = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """``dflash``, ``dflash2`` or ``dspark``."""
        return "dspark" if self.kind is Kind.DEEPSPEC_GEMMA4 else self.kind.value.split("-")[1]

    @property
    def layer_types(self) -> tuple[str, ...]:
        """Attention type of each layer."""
        slides = self.sliding_window is not None
        return tuple(
            "sliding_attention" if slides and index % 2 == 0 else "full_attention"
            for index in range(self.num_layers)
        )
