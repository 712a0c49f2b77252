"""RoPE facts of a config: layout, theta, scaling, from its own keys and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftrt.export.config.keys import ROPE_TYPES
from draftrt.export.config.reader import Facts
from draftrt.spec import RopeLayout, RopeSpec

ALIASES = {"su": "longrope", "mrope": "default", "ntk": "dynamic"}
_KNOWN = """
rope_theta rope_type type factor original_max_position_embeddings attention_factor beta_fast
beta_slow mscale mscale_all_dim truncate low_freq_factor high_freq_factor short_factor long_factor
partial_rotary_factor mrope_section mrope_interleaved finetuned max_position_embeddings
"""
KNOWN = frozenset(_KNOWN.split())
POSITIVE = (
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
)


def read_rope(
    facts: Facts,
    body: str,
    head_dim: int,
    layer_types: Sequence[str],
    *,
    rotates_whole: bool = False,
    default_theta: float | None = None,
) -> RopeSpec:
    """Resolve the rotary embedding.

    Args:
        facts: the config.
        body: prefix of the keys that describe the layers, with its dot, or empty.
        head_dim: elements of a head.
        layer_types: attention type of each layer, which selects nested parameters.
        rotates_whole: the layers turn the whole head whatever ``partial_rotary_factor`` says, as
            the Qwen3 and Gemma-4 code that drafters are trained with does; their configs often
            copy that key from a target.
        default_theta: where the config is silent and every runtime takes the same; None for none.
    """
    table, where = _parameters(facts, body, layer_types)
    theta = _theta(facts, body, table, where, default_theta)
    kind = _type(facts, table, where)
    partial = _partial(facts, body, table, where)
    if rotates_whole and partial != 1.0 and kind != "proportional":
        partial = _ignored_share(facts, kind, partial)
    rotary = head_dim if kind == "proportional" else int(head_dim * partial)
    if rotary % 2 or rotary < 2:
        facts.error(
            f"rotary dimensions: got {rotary} of head_dim {head_dim}, expected an even number"
        )
        rotary = 2
    if kind == "dynamic" and rotary == 2:
        facts.error(f"{where}: rope_type 'dynamic' needs more than 2 rotary dimensions")
    if "attn_factor" in table and "attention_factor" not in table:
        facts.error(
            f"{where}.attn_factor: got {table['attn_factor']!r:.40}, which transformers does not "
            "read and others multiply in",
            "state attention_factor in its place, which every runtime reads",
        )
    unknown = sorted(set(table) - KNOWN - {"attn_factor"})
    if unknown:
        facts.error(
            f"{where}: unknown keys {unknown}",
            "each would change the angles, and nothing here reads it",
        )
    layout, layout_source = _layout(facts)
    facts.say("rope", f"{where}; layout: {layout_source}")
    return RopeSpec(
        layout=layout,
        theta=theta,
        type=kind,
        rotary_dim=rotary,
        head_dim=head_dim,
        max_position_embeddings=_declared_positions(facts, body, kind),
        partial_rotary_factor=partial if kind == "proportional" else None,
        **_scaling(facts, body, table, where, kind, rotary),
    )


def _layout(facts: Facts) -> tuple[RopeLayout, str]:
    """Return the layout and its source; it belongs to the draft and never to its target."""
    scopes = ("", "dflash_config.", "dspark_config.", "transformer_layer_config.")
    keys = ("rope_is_neox_style", "is_neox_style")
    paths = [f"{scope}{key}" for scope in scopes for key in keys]
    neox = facts.flag("rope", paths, default=True, why="default of every family (neox)")
    return RopeLayout.NEOX if neox else RopeLayout.INTERLEAVED, facts.sources.get("rope", "")


def _parameters(facts: Facts, body: str, layer_types: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the scaling table and its path; the two spellings may both stand if they agree."""
    new = _nested(facts, f"{body}rope_parameters", layer_types)
    old = _nested(facts, f"{body}rope_scaling", layer_types)
    if new is None:
        return old if old is not None else ({}, f"{body}rope_theta")
    if old is not None:
        shared = {key: (new[0][key], old[0][key]) for key in set(new[0]) & set(old[0])}
        differing = {key: pair for key, pair in shared.items() if pair[0] != pair[1]}
        if differing:
            facts.error(
                f"{new[1]} and {old[1]} differ: {differing}",
                "keep the one the checkpoint was trained with",
            )
        return {**old[0], **new[0]}, new[1]
    return new


def _nested(
    facts: Facts, path: str, layer_types: Sequence[str]
) -> tuple[dict[str, Any], str] | None:
    table = facts.table(path)
    if not table:
        return None
    kinds = tuple(dict.fromkeys(layer_types))
    used = [kind for kind in kinds if isinstance(table.get(kind), dict)]
    flat = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if len(flat) != len(table) and len(used) != len(kinds):
        facts.error(
            f"{path}: has entries for {sorted(set(table) - set(flat))}, expected one for each of "
            f"the layers' types {sorted(kinds)}"
        )
    flat = {key: value for key, value in flat.items() if value is not None}
    if not used:
        return flat, path
    entries = [
        {key: value for key, value in table[kind].items() if value is not None} for kind in used
    ]
    if any(entry != entries[0] for entry in entries):
        facts.error(
            f"{path}: layers of types {used} have different rotary embeddings",
            "drafters with one embedding a layer type are not supported",
            unsupported=True,
        )
    theta, other = flat.get("rope_theta"), entries[0].get("rope_theta")
    if theta is not None and theta != other:
        facts.error(
            f"{path}.rope_theta {theta!r:.40} and {path}.{used[0]}.rope_theta {other!r:.40} differ",
            "keep the one the checkpoint was trained with",
        )
    return entries[0], f"{path}.{used[0]}"


def _ignored_share(facts: Facts, kind: str, partial: float) -> float:
    if kind == "default":
        facts.warnings.append(
            f"partial_rotary_factor {partial:g} has no effect: these layers turn the whole head"
        )
    else:
        facts.error(
            f"partial_rotary_factor {partial:g} with rope_type {kind!r} is not supported",
            "the layers' published code cannot run it",
            unsupported=True,
        )
    return 1.0


def _partial(facts: Facts, body: str, table: dict[str, Any], where: str) -> float:
    key = "partial_rotary_factor"
    both = {f"{where}.{key}": table.get(key), f"{body}{key}": facts.raw(f"{body}{key}")}
    stated = {path: value for path, value in both.items() if value is not None}
    for path, value in stated.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
            facts.error(f"{path}: got {value!r:.60}, expected a share in (0, 1]")
            return 1.0
    if len(set(stated.values())) > 1:
        facts.error(f"{key} is stated with different values: {stated}")
    return float(next(iter(stated.values()), 1.0))


def _theta(
    facts: Facts, body: str, table: dict[str, Any], where: str, default: float | None
) -> float:
    outer, inner = facts.raw(f"{body}rope_theta"), table.get("rope_theta")
    stated = {
        path: value
        for path, value in ((f"{where}.rope_theta", inner), (f"{body}rope_theta", outer))
        if value is not None
    }
    for path, value in stated.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1 < value < 1e30:
            facts.error(f"{path}: got {value!r:.60}, expected a number above 1")
            return 1e4
    if len({float(value) for value in stated.values()}) > 1:
        facts.error(
            f"rope theta is stated with different values: {stated}",
            "keep the one the checkpoint was trained with",
        )
    if not stated and default is not None:
        return default
    if not stated:
        facts.error(
            f"rope theta is missing, expected {body}rope_parameters.rope_theta or {body}rope_theta",
            "defaults differ between runtimes (1e4 in transformers, 1e6 in vLLM): none is assumed",
        )
        return 1e4
    return float(next(iter(stated.values())))


def _type(facts: Facts, table: dict[str, Any], where: str) -> str:
    kinds = {str(table[key]) for key in ("rope_type", "type") if table.get(key) is not None}
    kinds = {ALIASES.get(kind, kind) for kind in kinds} or {"default"}
    if len(kinds) > 1:
        facts.error(f"{where}: rope_type and type differ: {sorted(kinds)}")
    kind = sorted(kinds)[0]
    if kind not in ROPE_TYPES:
        facts.error(
            f"{where}: rope_type {kind!r} is not supported, expected one of {list(ROPE_TYPES)}",
            unsupported=True,
        )
        return "default"
    return kind


def _real(facts: Facts, table: dict[str, Any], where: str, key: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e12:
        facts.error(f"{where}.{key}: got {value!r:.60}, expected a number")
        return None
    return float(value)


def _declared_positions(facts: Facts, body: str, kind: str) -> int:
    paths = [f"{body}max_position_embeddings"]
    if kind in ("dynamic", "longrope", "yarn"):
        return facts.number("max_position_embeddings", paths, low=1, high=1 << 30)
    return facts.number(
        "max_position_embeddings",
        paths,
        low=1,
        high=1 << 30,
        default=1 << 20,
        why="not stated; no effect on this rope_type",
    )


def _scaling(
    facts: Facts, body: str, table: dict[str, Any], where: str, kind: str, rotary: int
) -> dict[str, Any]:
    needs = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "llama3": (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
        "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
        "yarn": ("factor",),
    }.get(kind, ())
    if kind in ("default",):
        return {}
    found: dict[str, Any] = {}
    original = table.get("original_max_position_embeddings")
    if original is None:
        original = facts.raw(f"{body}original_max_position_embeddings")
    if original is None and kind == "yarn":
        original = facts.raw(f"{body}max_position_embeddings")
    for key in (*POSITIVE, "mscale", "mscale_all_dim"):
        found[key] = _real(facts, table, where, key)
    for key in ("short_factor", "long_factor"):
        found[key] = _factors(facts, table, where, key, rotary // 2)
    if original is not None and (
        not isinstance(original, int) or isinstance(original, bool) or not 1 < original < 1 << 30
    ):
        facts.error(
            f"{where}.original_max_position_embeddings: got {original!r:.60}, expected an integer"
        )
        original = None
    found["original_max_position_embeddings"] = original
    truncate = table.get("truncate", True)
    if not isinstance(truncate, bool):
        facts.error(f"{where}.truncate: got {truncate!r:.60}, expected true or false")
        truncate = True
    found["truncate"] = truncate
    missing = [key for key in needs if found.get(key) is None]
    if missing:
        facts.error(f"{where}: rope_type {kind!r} needs {missing}")
    for key in POSITIVE:
        if found[key] is not None and found[key] <= 0:
            facts.error(f"{where}.{key}: got {found[key]}, expected a positive number")
    low, high = found["low_freq_factor"], found["high_freq_factor"]
    if kind == "llama3" and low is not None and high is not None and low >= high:
        facts.error(f"{where}: low_freq_factor {low} is not below high_freq_factor {high}")
    return found


def _factors(
    facts: Facts, table: dict[str, Any], where: str, key: str, length: int
) -> tuple[float, ...] | None:
    value = table.get(key)
    if value is None:
        return None
    ok = (
        isinstance(value, list)
        and len(value) == length
        and all(
            isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e12 for v in value
        )
    )
    if not ok:
        facts.error(f"{where}.{key}: expected {length} positive numbers")
        return None
    return tuple(float(v) for v in value)
