"""A toy language and both of its models at the ports: exact, instant, and strict about their feeds.

The target's next token is a fixed function of the text so far. Its features hold each token's
position and id, so the drafter's session can check that it is given the right rows, knows the whole
committed text from its "cache", and can draft rightly or wrongly as a script says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from draftrt.lifecycle import Closing
from draftrt.runtime.backends.base import Arrays, fed_signature
from draftrt.runtime.targets.base import Croppable, TargetRows
from draftrt.signature import DimRange, Signature, TensorSpec, check_feeds
from draftrt.spec import (
    Backbone,
    ConfidenceSpec,
    DrafterSpec,
    Family,
    LayerSpec,
    RopeLayout,
    RopeSpec,
    TableSource,
    TargetSpec,
    VocabMap,
)

VOCAB = 23
WIDTH = 6  # two taps of hidden size 3


def next_token(ids: Sequence[int]) -> int:
    """The toy language: what follows a text."""
    return (3 * ids[-1] + 5 * ids[len(ids) // 2] + len(ids)) % VOCAB


def toy_logits(ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits whose largest is `next_token`, the others all different."""
    logits = np.cos(np.arange(VOCAB) * (1 + len(ids) % 5) + ids[-1]).astype(np.float32)
    logits[next_token(ids)] = 1.5
    return logits


class FakeTarget(Croppable):
    """The toy language as a target; counts its calls and can fail in the middle of one."""

    def __init__(self, max_context: int = 200, feature_size: int = WIDTH) -> None:
        self.max_context, self.feature_size = max_context, feature_size
        self.ids: list[int] = []
        self.calls: list[int] = []
        self.fail_after_rows: int | None = None
        self.generation = 0

    @property
    def length(self) -> int:
        return len(self.ids)

    def prefill(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        return self.verify(token_ids, want_logits=want_logits).last()

    def verify(self, token_ids: NDArray[np.int64], *, want_logits: bool = False) -> TargetRows:
        assert token_ids.dtype == np.int64
        assert token_ids.ndim == 1
        self.calls.append(len(token_ids))
        features: list[list[int]] = []
        chosen, logits = [], []
        for token in token_ids.tolist():
            assert self.length < self.max_context, "the target ran past its context"
            if self.fail_after_rows == len(features):
                raise KeyboardInterrupt
            row = [self.length, token]
            features.append(row + [0] * (self.feature_size - 2))
            self.ids.append(token)
            logits.append(toy_logits(self.ids))
            chosen.append(next_token(self.ids))
        return TargetRows(
            features=np.array([features], np.float32),
            token_ids=np.array(chosen, np.int64),
            logits=np.array(logits) if want_logits else None,
        )

    def rollback(self, length: int) -> None:
        del self.ids[length:]

    def close(self) -> None:
        pass


def toy_signature(
    num_drafts: int, block_size: int, capacity: int, *, confidence: bool
) -> Signature:
    """The table of a drafter with one layer."""
    cache = (1, 1, capacity, 2)
    outputs = [TensorSpec(name="draft_ids", dtype="int64", shape=(1, num_drafts))]
    if confidence:
        outputs.append(TensorSpec(name="confidence", dtype="float32", shape=(1, num_drafts)))
    outputs += [
        TensorSpec(name=f"present_{kind}_0", dtype="float32", shape=cache, alias=f"past_{kind}_0")
        for kind in ("key", "value")
    ]
    return Signature(
        inputs=(
            TensorSpec(name="anchor", dtype="int64", shape=(1,)),
            TensorSpec(name="target_hidden", dtype="float32", shape=(1, "T", WIDTH)),
            TensorSpec(name="context_length", dtype="int64", shape=(1,)),
            TensorSpec(name="past_key_0", dtype="float32", shape=cache),
            TensorSpec(name="past_value_0", dtype="float32", shape=cache),
        ),
        outputs=tuple(outputs),
        dimensions={
            "T": DimRange(min=1, opt=min(8, capacity - block_size), max=capacity - block_size)
        },
    )


class FakeSession(Closing):
    """A drafter's graph that drafts as a script says: how many drafts of each round are right."""

    def __init__(self, signature: Signature, num_right: Sequence[int] = (0,)) -> None:
        self.signature = signature
        self._fed = fed_signature(signature)
        self._script: Iterator[int] = cycle(num_right)
        self.cache: list[int] = []
        self.offered: list[int] = []  # right drafts of each call
        self.closed = False
        self.interrupt = False

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        check_feeds(self._fed, feeds)
        start, features = int(feeds["context_length"][0]), feeds["target_hidden"][0]
        expected = list(range(start, start + len(features)))
        assert features[:, 0].tolist() == expected, "wrong context rows"
        del self.cache[start:]
        self.cache += features[:, 1].astype(int).tolist()
        assert len(self.cache) == start + len(features), "context rows are missing before these"
        if self.interrupt:
            raise KeyboardInterrupt
        return self._drafts([*self.cache, int(feeds["anchor"][0])], next(self._script))

    def _drafts(self, text: list[int], num_right: int) -> dict[str, NDArray[Any]]:
        num_drafts = int(self._fed.outputs[0].shape[1])
        self.offered.append(min(num_right, num_drafts))
        drafts: list[int] = []
        for index in range(num_drafts):
            right = next_token([*text, *drafts])
            drafts.append(right if index < num_right else (right + 1) % VOCAB)
        outputs: dict[str, NDArray[Any]] = {"draft_ids": np.array([drafts], np.int64)}
        if len(self._fed.outputs) > 1:
            confidences = [0.9 if index < num_right else 0.1 for index in range(num_drafts)]
            outputs["confidence"] = np.array([confidences], np.float32)
        return outputs

    def close(self) -> None:
        self.closed = True


TOY_ROPE = RopeSpec(
    layout=RopeLayout.NEOX,
    theta=1e4,
    type="default",
    rotary_dim=2,
    head_dim=2,
    max_position_embeddings=256,
)


def toy_spec(
    block_size: int = 5, *, sample_from_anchor: bool = False, confidence: bool = False
) -> DrafterSpec:
    """A drafter that taps layers 1 and 3 of a target of hidden size 3."""
    facts: dict[str, Any] = {
        "family": Family.DFLASH,
        "backbone": Backbone.QWEN3,
        "checkpoint_format": "zlab",
        "dtype": "float32",
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
        "rms_norm_eps": 1e-6,
        "activation": "silu",
        "attention_bias": False,
        "attention_scale": 1.0,
        "attention_k_eq_v": False,
        "attention_value_scale": 1.0,
        "rope": TOY_ROPE,
        "layers": (LayerSpec(is_causal=False),),
        "block_size": block_size,
        "sample_from_anchor": sample_from_anchor,
        "target_layer_ids": (1, 3),
        "num_target_layers": 4,
        "target_hidden_size": 3,
        "mask_token_id": 1,
        "input_vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "target_vocab_size": VOCAB,
        "vocab_map": VocabMap.IDENTITY,
        "embed_source": TableSource.TARGET,
        "head_source": TableSource.TARGET,
        "mask_embedding": False,
        "embedding_scale": 1.0,
        "output_multiplier": 1.0,
        "final_logit_softcapping": None,
        "markov": None,
        "confidence": ConfidenceSpec(with_markov=False, has_bias=True) if confidence else None,
        "selector": None,
        "conv": None,
    }
    names = {field.name for field in fields(DrafterSpec)} - {"sources", "warnings"}
    return DrafterSpec(**facts, sources=dict.fromkeys(names, "test"))


def toy_target_spec(**changed: Any) -> TargetSpec:
    """The target that `toy_spec` taps, some facts changed."""
    facts: dict[str, Any] = {
        "architecture": "Qwen3ForCausalLM",
        "model_type": "qwen3",
        "num_layers": 4,
        "hidden_size": 3,
        "vocab_size": VOCAB,
        "table_rows": None,
        "tie_word_embeddings": False,
        "eos_token_ids": (5, 6),
        **changed,
    }
    return TargetSpec(**facts, sources=dict.fromkeys(facts, "test"))


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    """The toy language, its models, and what builds them."""
    return SimpleNamespace(
        vocab=VOCAB,
        width=WIDTH,
        next_token=next_token,
        logits=toy_logits,
        target=FakeTarget,
        session=FakeSession,
        signature=toy_signature,
        spec=toy_spec,
        target_spec=toy_target_spec,
        greedy=greedy,
    )


def greedy(
    prompt: Sequence[int], num_tokens: int, follow: Callable[[Sequence[int]], int] = next_token
) -> list[int]:
    """The target alone, token by token: the slow, obvious reference."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(follow(text))
    return text[len(prompt) :]
