"""The three vocabularies of a drafter: input, draft, target; and how draft ids become target ids.

"Reduced" means exactly one thing, here and everywhere: draft vocabulary < the target's logical one
(`DrafterSpec.is_reduced`).

What a table borrowed from the target brings with it: its scale, and the cap on its logits.

A Gemma-4 target multiplies the rows of its embedding by sqrt(hidden size) and caps its logits.
z-lab's drafters are trained behind that embedding, and their runtimes scale and cap what they
borrow in the same way. A drafter that states either fact itself is taken at its word. Other targets
that scale their rows are told of: their drafters were trained on raw rows as far as is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from draftrt.dtypes import FLOATS
from draftrt.export.checkpoint.target import EMBED, HEAD, TargetCheckpoint
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.drafter import ConfigFacts
from draftrt.export.config.heads import cap_paths
from draftrt.export.config.layers import SCALE_PATHS, rounded
from draftrt.export.config.reader import Facts
from draftrt.spec import Backbone, Family, TableSource, VocabMap

Tensors = Mapping[str, TensorRef]


def read_vocabulary(
    facts: Facts, config: ConfigFacts, tensors: Tensors, target: TargetCheckpoint | None
) -> dict[str, Any]:
    """Resolve table sources, the three sizes and the id map; findings stay in ``facts``."""
    embed_source, rows = _input_table(facts, config, tensors, target)
    mask = config.fields["mask_token_id"]
    own_mask = "mask_embedding" in tensors and config.kind.family is not Family.DSPARK
    facts.say("mask_embedding", "tensor mask_embedding" if own_mask else "no tensor mask_embedding")
    if mask >= rows and not own_mask:
        whose = "the draft's own" if embed_source is TableSource.DRAFT else "the target's"
        facts.error(
            f"mask_token_id: got {mask}, expected 0 to {rows - 1} ({whose} embedding table)",
            "a mask id outside the table needs a table of the draft's own, or a mask_embedding",
        )
    head_source = _head(facts, config, tensors, target)
    vocab = None if target is None else target.spec.vocab_size
    facts.say(
        "target_vocab_size",
        "no target given"
        if target is None
        else f"target {target.spec.sources.get('vocab_size', 'vocab_size')}",
    )
    mapping = _vocab_map(facts, config, tensors, vocab)
    _check_markov_rows(facts, tensors, vocab)
    _check_candidates(facts, config, vocab)
    if mapping is not VocabMap.IDENTITY and config.fields["selector"] is not None:
        facts.error(
            "a reduced vocabulary together with the DFlash2 selector is not supported",
            unsupported=True,
        )
    return {
        "input_vocab_size": rows,
        "draft_vocab_size": config.draft_vocab_size,
        "target_vocab_size": vocab,
        "vocab_map": mapping,
        "embed_source": embed_source,
        "head_source": head_source,
        "mask_embedding": own_mask,
    }


def _input_table(
    facts: Facts, config: ConfigFacts, tensors: Tensors, target: TargetCheckpoint | None
) -> tuple[TableSource, int]:
    declared = config.vocab_size
    own = tensors.get(EMBED)
    if own is not None and own.shape:
        facts.say("embed_source", f"tensor {own.name}")
        if own.shape[0] != declared:
            facts.error(f"vocab_size: got {declared}, but {own.name} has {own.shape[0]} rows")
        facts.say("input_vocab_size", f"tensor {own.name}")
        if target is not None and own.shape[0] < target.spec.vocab_size:
            facts.error(
                f"{own.name} has {own.shape[0]} rows, expected at least the target's "
                f"{target.spec.vocab_size}",
                "the anchor may be any token of the target",
            )
        return TableSource.DRAFT, own.shape[0]
    facts.say("embed_source", "no embed_tokens in the checkpoint: borrowed")
    table = None if target is None else target.tables.get(EMBED)
    if table is None:
        return TableSource.TARGET, declared
    facts.say("input_vocab_size", f"target tensor {table.name}")
    if declared > table.shape[0]:
        facts.error(
            f"vocab_size: got {declared}, but the target's embedding table has {table.shape[0]} "
            f"rows and the draft ships none",
            "an input vocabulary larger than the target's needs its own embed_tokens",
        )
    return TableSource.TARGET, table.shape[0]


def _head(
    facts: Facts, config: ConfigFacts, tensors: Tensors, target: TargetCheckpoint | None
) -> TableSource:
    size, own = config.draft_vocab_size, tensors.get(HEAD)
    if own is not None and own.shape:
        facts.say("head_source", f"tensor {own.name}")
        if own.shape[0] != size:
            facts.error(
                f"draft_vocab_size: got {size} ({facts.sources.get('draft_vocab_size')}), but "
                f"{own.name} has {own.shape[0]} rows"
            )
        _check_tie(facts, config, own, tensors.get(EMBED))
        return TableSource.DRAFT
    if _is_tied(facts, config, tensors):
        return TableSource.DRAFT
    facts.say("head_source", "no lm_head in the checkpoint: borrowed")
    table = None if target is None else target.tables.get(HEAD)
    if table is None or target is None:
        return TableSource.TARGET
    if size < target.spec.vocab_size:
        facts.error(
            f"draft_vocab_size {size} is below the target's {target.spec.vocab_size}, but the "
            f"checkpoint has no lm_head of its own",
            "a reduced vocabulary needs its own lm_head and d2t",
        )
    elif size > table.shape[0]:
        facts.error(
            f"draft_vocab_size: got {size}, but the target's LM head has {table.shape[0]} rows "
            f"and the draft ships none"
        )
    return TableSource.TARGET


def _is_tied(facts: Facts, config: ConfigFacts, tensors: Tensors) -> bool:
    """Whether a head that is not stored is the drafter's own embedding, as a tied model is saved.

    Without an embedding of its own a drafter borrows both: z-lab's configs call borrowed tables
    tied as well.
    """
    embed = tensors.get(EMBED)
    if embed is None or not embed.shape:
        return False
    key, body = "tie_word_embeddings", config.kind.body
    is_gemma = config.kind.backbone is Backbone.GEMMA4
    tied = facts.flag(
        "head_source",
        list(dict.fromkeys([key, f"{body}{key}"])),
        default=is_gemma,
        why=f"default of {'Gemma4TextConfig: tied' if is_gemma else 'Qwen3Config: not tied'}",
    )
    source = facts.sources.get("head_source", key)
    if not tied:
        if source not in (key, f"{body}{key}"):
            facts.warnings.append(
                f"the checkpoint has {embed.name} and no lm_head, and does not state {key}: the "
                "head is the target's"
            )
        return False
    size = config.draft_vocab_size
    if embed.shape[0] != size:
        facts.error(
            f"draft_vocab_size: got {size} ({facts.sources.get('draft_vocab_size')}), but the head "
            f"is {embed.name} ({source}), which has {embed.shape[0]} rows",
            "a head of another size needs its own lm_head",
        )
    facts.say("head_source", f"tensor {embed.name}, tied to it: {source}")
    return True


def _check_tie(facts: Facts, config: ConfigFacts, head: TensorRef, embed: TensorRef | None) -> None:
    """Warn where a config calls two stored tables tied and they are not the same."""
    key, body = "tie_word_embeddings", config.kind.body
    if embed is None or True not in (facts.raw(key), facts.raw(f"{body}{key}")):
        return
    if not _is_same(head, embed):
        facts.warnings.append(
            f"{key} is true, but {head.name} and {embed.name} are both stored and differ: each is "
            "used as it is stored"
        )


def _is_same(one: TensorRef, other: TensorRef) -> bool:
    """Whether two tables agree in type, shape and the content of their first and last rows."""
    if (one.dtype, one.shape) != (other.dtype, other.shape) or one.dtype not in FLOATS:
        return False
    last = one.shape[0] - 1
    return all(
        np.array_equal(one.rows(row, row + 1).read_bytes(), other.rows(row, row + 1).read_bytes())
        for row in {0, last // 3, last // 2, last}
    )


def _vocab_map(facts: Facts, config: ConfigFacts, tensors: Tensors, vocab: int | None) -> VocabMap:
    size, ref = config.draft_vocab_size, tensors.get("d2t")
    if ref is None:
        if vocab is not None and size < vocab:
            facts.error(
                f"draft_vocab_size {size} is below the target's {vocab}, but there is no d2t",
                "a reduced vocabulary needs its own lm_head and d2t",
            )
        facts.say("vocab_map", "draft vocabulary covers the target's: identity")
        return VocabMap.IDENTITY
    if len(ref.shape) != 1 or ref.shape[0] != size or ref.dtype not in ("int64", "int32"):
        facts.error(
            f"d2t: got {ref.dtype} {list(ref.shape)}, expected int64 [{size}] (draft_vocab_size)"
        )
        return VocabMap.IDENTITY
    table = ref.read_integers()
    offsets = np.arange(size) + table
    if vocab is None:
        mask = tensors.get("t2d")
        vocab = (
            mask.shape[0]
            if mask is not None and len(mask.shape) == 1
            else int(max(offsets.max(), table.max())) + 1
        )
    if size >= vocab:
        if np.array_equal(table, np.zeros_like(table)) or np.array_equal(table, np.arange(size)):
            facts.say("vocab_map", "d2t is the identity")
            return VocabMap.IDENTITY
        facts.error(
            f"d2t given for a draft vocabulary of {size}, which is not below the target's {vocab}",
            "a full or padded vocabulary maps by identity; this d2t would permute tokens",
        )
        return VocabMap.IDENTITY
    return _read_reduced(facts, table, offsets, vocab, tensors.get("t2d"))


def _read_reduced(
    facts: Facts,
    table: np.ndarray[Any, Any],
    offsets: np.ndarray[Any, Any],
    vocab: int,
    t2d: TensorRef | None,
) -> VocabMap:
    """Offsets as published, absolute ids where only they make sense; a t2d mask must agree."""

    def valid(ids: np.ndarray[Any, Any]) -> bool:
        return bool(ids.min() >= 0 and ids.max() < vocab and len(np.unique(ids)) == len(ids))

    kept = None
    if t2d is not None and t2d.dtype == "bool" and t2d.shape == (vocab,):
        kept = np.flatnonzero(t2d.read_integers())
    readings = {VocabMap.OFFSET: offsets, VocabMap.ABSOLUTE: table}
    good = [kind for kind, ids in readings.items() if valid(ids)]
    if kept is not None:
        good = [kind for kind in good if np.array_equal(np.sort(readings[kind]), kept)]
    if not good:
        facts.error(
            f"d2t: as offsets it gives ids {offsets.min()}..{offsets.max()}, as absolute ids "
            f"{table.min()}..{table.max()}, expected distinct ids in 0..{vocab - 1}"
            + ("" if kept is None else " that are the ones t2d marks"),
            "the map is broken or belongs to another target",
        )
        return VocabMap.OFFSET
    if kept is None and len(good) == 2 and bool((np.diff(table) > 0).all()):
        facts.warnings.append(
            "d2t could hold offsets or absolute ids, and there is no t2d to tell: read as offsets"
        )
    if good[0] is VocabMap.ABSOLUTE:
        facts.warnings.append("d2t holds absolute target ids, not offsets; read as such")
    facts.say("vocab_map", f"tensor d2t, read as {good[0].value}")
    return good[0]


def _check_candidates(facts: Facts, config: ConfigFacts, vocab: int | None) -> None:
    selector = config.fields["selector"]
    drafted = min(config.draft_vocab_size, vocab or config.draft_vocab_size)
    if selector is not None and selector.top_k > drafted:
        facts.error(f"selector_top_k: got {selector.top_k}, expected at most {drafted} draft ids")


def _check_markov_rows(facts: Facts, tensors: Tensors, vocab: int | None) -> None:
    table = tensors.get("markov_head.markov_w1.weight")
    if table is not None and table.shape and vocab is not None and table.shape[0] < vocab:
        facts.error(
            f"{table.name} has {table.shape[0]} rows, expected at least the target's {vocab}",
            "W1 is indexed by target ids",
        )


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
