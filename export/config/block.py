"""Block, alignment, mask token and taps of a config: what one round feeds and where it listens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from draftrt.export.config.family import Kind
from draftrt.export.config.reader import Facts
from draftrt.spec import Family


def read_block(facts: Facts, kind: Kind, stated: bool | None) -> dict[str, Any]:
    """Resolve block size, alignment and mask token.

    Args:
        facts: the config.
        kind: family and format.
        stated: the user's own word on alignment where the config is silent.
    """
    block = facts.number(
        "block_size",
        ["dflash_config.block_size", "block_size", "dspark_block_size"],
        low=2,
        high=256,
    )
    anchor = _sample_from_anchor(facts, kind, stated)
    if kind.is_speculators:
        _check_speculative_tokens(facts, block, anchor)
    if kind.family is Family.DFLASH2 and anchor:
        facts.error(
            "sample_from_anchor is true in a DFlash2 drafter",
            "DFlash2 drafts from row 1 on",
            unsupported=True,
        )
    mask = facts.number(
        "mask_token_id",
        [
            "dflash_config.mask_token_id",
            "mask_token_id",
            *([f"{kind.body}mask_token_id"] if kind.body else []),
            "dspark_noise_token_id",
            "pard_token",
            "ptd_token_id",
        ],
        low=0,
        high=1 << 26,
        hint="without it the block cannot be filled; take the id from the publisher's config",
    )
    return {"block_size": block, "sample_from_anchor": anchor, "mask_token_id": mask}


def _sample_from_anchor(facts: Facts, kind: Kind, stated: bool | None) -> bool:
    """Alignment: explicit key, its negated and older spellings, the architecture's own code."""
    fact = "sample_from_anchor"
    explicit = [
        f"{scope}{key}"
        for key in ("sample_from_anchor", "query_zero_predicts_next")
        for scope in ("", "dflash_config.")
    ]
    inverse = ["dspark_bonus_anchor", "dflash_config.dspark_bonus_anchor"]
    shift = ["shift_label", "dflash_config.shift_label"]
    claims = {path: facts.raw(path) for path in (*explicit, *inverse, *shift)}
    claims = {path: value for path, value in claims.items() if value is not None}
    for path, value in claims.items():
        if not isinstance(value, bool):
            facts.error(f"{path}: got {value!r:.40}, expected true or false")
            return False
    meant = {path: value != (path in inverse) for path, value in claims.items()}
    if stated is not None:
        meant = {"--sample-from-anchor": stated, **meant}
    if len(set(meant.values())) > 1:
        facts.error(
            f"alignment is stated with different values: {meant}",
            "sample_from_anchor true means row 0 drafts too",
        )
    if meant:
        path = next(iter(meant))
        facts.say(fact, path)
        return bool(meant[path])
    if kind.is_speculators and kind.family is Family.DSPARK:
        facts.error(
            "sample_from_anchor is missing in a speculators DSpark config",
            "checkpoints of both alignments were published: pass --sample-from-anchor (row 0 "
            "drafts too, B drafts a round) or --no-sample-from-anchor (B - 1)",
        )
        return True
    label = "" if kind.is_stated else kind.architecture
    facts.say(fact, f"default of {label or kind.family.value}")
    return kind.family is Family.DSPARK


def _check_speculative_tokens(facts: Facts, block: int, anchor: bool) -> None:
    methods = facts.raw("speculators_config.proposal_methods")
    first = (
        methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    )
    tokens, drafts = first.get("speculative_tokens"), block if anchor else block - 1
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return
    if tokens > drafts:
        facts.error(
            f"speculators_config asks for {tokens} speculative tokens, but block_size {block} with "
            f"sample_from_anchor {anchor} yields {drafts}",
            "one of the three is wrong",
        )
    elif tokens < drafts:
        facts.warnings.append(
            f"speculators_config asks for {tokens} speculative tokens, the block yields {drafts}"
        )


def read_taps(facts: Facts, kind: Kind, num_layers: int, hidden_size: int) -> dict[str, Any]:
    """Resolve the tapped layers, the width of a tap and the target depth the config declares."""
    depth = None
    for path in ("dflash_config.num_target_layers", "num_target_layers"):
        if facts.raw(path) is not None:
            depth = facts.number(
                "num_target_layers",
                ["dflash_config.num_target_layers", "num_target_layers"],
                low=1,
                high=1024,
            )
            break
    else:
        facts.say("num_target_layers", "not stated")
    width = facts.number(
        "target_hidden_size",
        ["target_hidden_size"],
        low=1,
        high=1 << 24,
        default=hidden_size,
        why=f"{kind.body}hidden_size",
    )
    return {
        "num_target_layers": depth,
        "target_hidden_size": width,
        "target_layer_ids": _tap_ids(facts, kind, depth, num_layers),
    }


TAPS = (
    ("dflash_config.target_layer_ids", 0),
    ("target_layer_ids", 0),
    ("dspark_target_layer_ids", 0),
    ("dflash_config.eagle_aux_hidden_state_layer_ids", 1),
    ("eagle_aux_hidden_state_layer_ids", 1),
    ("aux_hidden_state_layer_ids", 1),
)


def _tap_ids(facts: Facts, kind: Kind, depth: int | None, num_layers: int) -> tuple[int, ...]:
    """Normalise every spelling to "output of decoder layer k, 0-based"."""
    claims: dict[str, tuple[int, ...]] = {}
    for path, shift in TAPS:
        ids = facts.numbers("target_layer_ids", path, low=-1 + shift, high=1024)
        if ids is not None:
            claims[path] = tuple(k - shift for k in ids)
    if len(set(claims.values())) > 1:
        facts.error(
            f"target_layer_ids are stated with different values (as outputs of layer k): {claims}",
            "aux_hidden_state_layer_ids count one above target_layer_ids",
        )
    if claims:
        path, ids = next(iter(claims.items()))
        shifted = dict(TAPS)[path]
        facts.say("target_layer_ids", f"{path} - 1" if shifted else path)
        if any(b <= a for a, b in pairwise(ids)):
            facts.error(
                f"{path}: got {[k + shifted for k in ids]}, expected strictly increasing layers",
                "features are concatenated in this order",
            )
        return ids
    if depth is None or kind.is_speculators or (depth < 5 and num_layers > 1):
        facts.error(
            "target_layer_ids is missing, and there is a default only for a z-lab drafter that "
            "states num_target_layers (5 or more)",
            "state the tapped layers; a wrong guess only shows as lost acceptance",
        )
        return (0,)
    facts.say("target_layer_ids", "default of z-lab: spread from 1 to num_target_layers - 3")
    if num_layers == 1:
        return (depth // 2,)
    return tuple(round(1 + i * (depth - 4) / (num_layers - 1)) for i in range(num_layers))
