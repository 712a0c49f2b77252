"""Names of what goes into a draft graph and comes out of it, the caches aside."""

from __future__ import annotations

from draftrt.spec import DrafterSpec, VocabMap

EXTRA_OUTPUTS = ("hidden", "base_logits", "logits", "draft_vocab_ids", "candidates")
SAMPLED_INPUTS = ("noise", "inverse_temperature")
CANDIDATE_OUTPUTS = ("candidate_ids", "candidate_scores")
SAMPLED_OUTPUTS = (*CANDIDATE_OUTPUTS, "vocabulary_ids")


def output_names(
    spec: DrafterSpec, extra: tuple[str, ...] = (), *, is_sampled: bool = False
) -> tuple[str, ...]:
    """Return the outputs before the caches, in graph order, without extras the family lacks."""
    names = ["draft_ids"] + (["confidence"] if spec.confidence is not None else [])
    walked = {"candidates", *CANDIDATE_OUTPUTS}
    has = {*EXTRA_OUTPUTS, *walked} if spec.selector is not None else set(EXTRA_OUTPUTS) - walked
    asked = {name for name in extra if name in has}
    if is_sampled and spec.selector is not None:
        asked |= set(CANDIDATE_OUTPUTS)
    elif is_sampled:
        asked.add("logits")
        if spec.vocab_map is not VocabMap.IDENTITY:
            asked.add("vocabulary_ids")
    return (*names, *(name for name in (*EXTRA_OUTPUTS, *SAMPLED_OUTPUTS) if name in asked))
