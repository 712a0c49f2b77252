"""What a table borrowed from the target brings with it: its scale, and the cap on its logits.

A Gemma-4 target multiplies the rows of its embedding by sqrt(hidden size) and caps its logits.
z-lab's drafters are trained behind that embedding, and their runtimes scale and cap what they
borrow in the same way. A drafter that states either fact itself is taken at its word. Other targets
that scale their rows are told of: their drafters were trained on raw rows as far as is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.config.drafter import ConfigFacts
from draftrt.export.config.heads import cap_paths
from draftrt.export.config.layers import SCALE_PATHS, rounded
from draftrt.export.config.reader import Facts
from draftrt.spec import Backbone, TableSource

ADOPTED = "gemma4"  # model types that start so: z-lab's runtimes scale and cap what is borrowed
RAW = "muse"  # model types that start so: known to be read raw, whatever their configs say
SCALED = ("gemma", "recurrent_gemma")  # model types that multiply rows by sqrt(hidden size)
SWITCH, CAP = "scale_embedding", "final_logit_softcapping"
MULTIPLIERS = ("embedding_multiplier", "scale_emb", "embed_scale", "embedding_scale")


def read_borrowed(
    facts: Facts,
    config: ConfigFacts,
    target: TargetCheckpoint | None,
    sources: Mapping[str, TableSource],
) -> dict[str, Any]:
    """Return the `DrafterSpec` fields that a borrowed table decides; findings stay in ``facts``.

    Args:
        facts: the drafter's config.
        config: what it says, without a target.
        target: whose tables may be borrowed.
        sources: ``embed_source`` and ``head_source``.
    """
    if target is None or config.kind.backbone is Backbone.GEMMA4:
        return {}
    fields: dict[str, Any] = {}
    if sources["embed_source"] is TableSource.TARGET:
        fields |= _scale(facts, config, target)
    if sources["head_source"] is TableSource.TARGET:
        fields |= _cap(facts, config, target)
    return fields


def brought(target: TargetCheckpoint) -> dict[str, Any]:
    """Return what of a target's config decides here, for a record; empty where nothing does."""
    kept = {key: target.text[key] for key in (*MULTIPLIERS, SWITCH, CAP) if key in target.text}
    is_scaled = target.spec.model_type.startswith(SCALED)
    return {**({"model_type": target.spec.model_type} if is_scaled else {}), **kept}


def _adopts(config: ConfigFacts, target: TargetCheckpoint) -> bool:
    """Whether this format's drafters are trained behind the target's own scale and cap."""
    return target.spec.model_type.startswith(ADOPTED) and not config.kind.is_speculators


def _scale(facts: Facts, config: ConfigFacts, target: TargetCheckpoint) -> dict[str, Any]:
    root, why = _own_scale(target)
    if root == 1.0:
        return {}
    stated = next((path for path in SCALE_PATHS if facts.raw(path) is not None), None)
    if stated is not None:
        value = config.fields["embedding_scale"]
        if not math.isclose(value, root, rel_tol=0.01):
            facts.warnings.append(
                f"{stated} is {value:g}, but the target scales the rows of its embedding by "
                f"{root:g} ({why}): taken as stated, on raw rows"
            )
        return {}
    if not _adopts(config, target):
        facts.warnings.append(
            f"the target scales the rows of its embedding by {root:g} ({why}); the drafter borrows "
            "them raw, as nothing in its config says otherwise (input_embedding_scale would)"
        )
        return {}
    dtype = config.fields["dtype"]
    facts.say("embedding_scale", f"borrowed with the target's embedding: {why} in {dtype}")
    return {"embedding_scale": rounded(root, dtype)}


def _own_scale(target: TargetCheckpoint) -> tuple[float, str]:
    """Return what a target multiplies its embedded rows by, and where that is said."""
    if target.spec.model_type.startswith(RAW):
        return 1.0, ""
    if target.spec.model_type.startswith(SCALED):
        return math.sqrt(target.spec.hidden_size), f"{target.spec.model_type}: sqrt(hidden_size)"
    for key in MULTIPLIERS:
        value = target.text.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value), key
    if target.text.get(SWITCH) is True:
        return math.sqrt(target.spec.hidden_size), f"{SWITCH}: sqrt(hidden_size)"
    return 1.0, ""


def _cap(facts: Facts, config: ConfigFacts, target: TargetCheckpoint) -> dict[str, Any]:
    cap = target.text.get(CAP)
    if cap in (None, 0, False):
        return {}
    if not isinstance(cap, (int, float)) or isinstance(cap, bool) or not 0 < cap < 1e30:
        facts.error(f"target {CAP}: got {cap!r:.40}, expected a positive number")
        return {}
    stated = next((path for path in cap_paths(config.kind.body) if facts.raw(path) is not None), "")
    if stated:
        own = config.fields[CAP]
        if own != cap:
            facts.warnings.append(
                f"{stated} is {own or 'off'}, but the target caps its logits at {cap:g}: taken as "
                "stated"
            )
        return {}
    if not _adopts(config, target):
        return {}  # which draft is best does not depend on it
    facts.say(CAP, f"borrowed with the target's head: target {CAP}")
    return {CAP: float(cap)}
