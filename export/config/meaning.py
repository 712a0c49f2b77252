"""Config keys that change what a model computes and that nothing here reads: never to be ignored.

A key is told by its name. `TOPICS` says what a name is about; a name about training or about the
config itself is exempt. What is left may be declared to be without effect by `--ignore-key`.
"""

from __future__ import annotations

import re
from typing import Any

OFF_WHEN_EMPTY = ("how weights are stored", "a mixture of experts")

# what a key of that name decides, and the names
TOPICS: tuple[tuple[str, str], ...] = (
    (
        "how weights are stored",
        r"quant|compress|gptq|awq|\b(nv|mx)fp[48]\b|\bfp8\b|^(bits|group_size)$",
    ),
    (
        "a mixture of experts",
        r"expert|\b(moe|router|routed|topk|top_k_group)\b|\bn_group\b|scoring_func|dense_replace"
        r"|sparse_step",
    ),
    (
        "which rows a layer sees",
        r"window|sliding|\bswa\b|layer_types?\b|causal|bidirectional|attention_(pattern|mode|type)"
        r"|chunk|\blocal\b|\bglobal\b|mask_type|attn_mask|attention_mask|full_attention",
    ),
    ("how positions enter", r"rope|rotary|position|alibi|yarn|theta|neox|\bntk\b"),
    (
        "which rows draft which token",
        r"predict|anchor|shift|offset|stride|dilat|interleav|revers|\border\b|\bmode\b|bonus"
        r"|query_zero|\bblock\b|draft_length|\bmtp\b|speculat|sample_from|denois|refine|diffusion"
        r"|step_size|iteration",
    ),
    (
        "what the drafter hears of its target",
        r"target_(layer|hidden|feature|tap)|\baux\b|feature|fusion|\bfuse|\btaps?\b|capture",
    ),
    (
        "tables and ids",
        r"embed|vocab|\bmask\b|mask_(token|embedding)|noise|\btied?\b|\bshared?\b|codebook|d2t|t2d",
    ),
    (
        "how rows are scaled",
        r"scal(e|ing)|multiplier|soft_?cap|temperatures?\b|factor|logit|softmax|\bnorm|norm\b|norms\b"
        r"|\beps(ilon)?\b|residual|clip|clamp",
    ),
    (
        "the layers' arithmetic",
        r"attention|\battn\b|\bq(k|kv)?\b|\bkv?\b|\bv\b|\bo\b|quer(y|ies)|\bkeys?\b|\bvalues?\b|head"
        r"|sink|lora|\bmla\b|layer|depth|\bmlp\b|\bffn\b|feed_forward|hidden|intermediate|\bdims?\b"
        r"|\branks?\b|\bconv|\bgat(e|ed|ing)\b|\bact(ivation)?(_fn)?\b|bias|project|markov|confidence"
        r"|selector|candidate|domino|\bgru\b|\brnn\b|mamba|\bssm\b|linear|recurren|\bcache\b|skip"
        r"|adapter",
    ),
)
# words of names that are about the making of a model, not about what it computes
_EXEMPT = (
    r"\b(train|trainer|training|trained|loss|losses|eval|evaluation|optim|optimizer|lr|learning"
    r"|dataset|datasets|data|epoch|epochs|batch|batches|log|logging|wandb|save|saved|saving"
    r"|checkpointing|seed|warmup|dropout|init|initializer|initialization|unsloth)\b"
    r"|\b(url|path|name|version|commit|date|time|author|authors|license|link|comment|note|notes"
    r"|description|backend|implementation|repo|revision)$"
)


def meaning_of(key: str) -> str:
    """Return what a key decides, by its name; empty for one that may be without effect.

    Args:
        key: its dotted path; only the last name counts.
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.rpartition(".")[2]).lower()
    words = name.replace("_", " ")  # so that \b parts them
    for topic, pattern in TOPICS:
        if re.search(pattern.replace("_", " "), words):
            exempt = topic not in OFF_WHEN_EMPTY and re.search(_EXEMPT, words)
            return "" if exempt else topic
    return ""


def is_off(key: str, value: Any) -> bool:
    """Whether a key says that a model has no experts, or that its weights are not quantised."""
    return value in (False, 0, "", [], {}) and meaning_of(key) in OFF_WHEN_EMPTY
