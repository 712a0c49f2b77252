"""Which family, backbone and publisher's format a config declares; and what is refused by name."""

from __future__ import annotations

from dataclasses import dataclass

from draftrt.export.config.reader import Facts
from draftrt.spec import Backbone, Family

ARCHITECTURES: dict[str, tuple[Family, Backbone]] = {
    "DFlashDraftModel": (Family.DFLASH, Backbone.QWEN3),
    "Qwen3DFlashModel": (Family.DFLASH, Backbone.QWEN3),
    "MuseGlimmerAssistantModel": (Family.DFLASH, Backbone.QWEN3),
    "DFlash2DraftModel": (Family.DFLASH2, Backbone.QWEN3),
    "Qwen3DFlash2Model": (Family.DFLASH2, Backbone.QWEN3),
    "Qwen3DFlash2DraftModel": (Family.DFLASH2, Backbone.QWEN3),
    "DSparkDraftModel": (Family.DSPARK, Backbone.QWEN3),
    "Qwen3DSparkModel": (Family.DSPARK, Backbone.QWEN3),
    "Qwen3OmniDSparkModel": (Family.DSPARK, Backbone.QWEN3),
    "Lfm2DSparkDraftModel": (Family.DSPARK, Backbone.QWEN3),
    "Gemma4DSparkModel": (Family.DSPARK, Backbone.GEMMA4),
}
DEEPSPEC = frozenset({"Qwen3DSparkModel", "Gemma4DSparkModel"})
MODEL_TYPES = {
    "qwen3": Backbone.QWEN3,
    "qwen3_text": Backbone.QWEN3,
    "qwen3_5": Backbone.QWEN3,
    "qwen3_5_text": Backbone.QWEN3,
    "qwen3_dflash": Backbone.QWEN3,
    "qwen3_dflash2": Backbone.QWEN3,
    "qwen3_dspark": Backbone.QWEN3,
    "dflash": Backbone.QWEN3,
    "dflash2": Backbone.QWEN3,
    "dspark": Backbone.QWEN3,
    "llama": Backbone.QWEN3,
    "speculator_model": Backbone.QWEN3,
    "speculators": Backbone.QWEN3,
    "muse_glimmer_assistant": Backbone.QWEN3,
    "gemma4_text": Backbone.GEMMA4,
    "gemma4": Backbone.GEMMA4,
}
# keys of the layers that may stand at the top, beside or instead of those in their own table
_LAYER_KEYS = """
layer_types sliding_window use_sliding_window num_attention_heads num_key_value_heads head_dim
hidden_size intermediate_size num_hidden_layers rms_norm_eps hidden_act attention_bias
attention_value_scale rope_theta rope_scaling rope_parameters partial_rotary_factor
original_max_position_embeddings max_position_embeddings vocab_size
"""
LAYER_KEYS = tuple(_LAYER_KEYS.split())
MLA_TYPES = frozenset({"k3_dspark", "kimi_k3_dspark", "glm5_dspark", "deepseek_v3", "deepseek_v32"})
V4_TYPES = frozenset({"deepseek_v4", "deepseek_v4_dspark"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What a config declares itself to be.

    Attributes:
        family: how it drafts.
        backbone: flavour of its layers.
        format: publisher's layout, for people.
        architecture: its architecture string; may be empty.
        is_speculators: speculators' conventions hold (layer ids one higher, window edge, defaults).
        body: prefix of the keys that describe the layers, with its dot, or empty.
        is_settled: false where nothing known names the family.
        is_stated: the user named the family, whatever the architecture string says.
    """

    family: Family
    backbone: Backbone
    format: str
    architecture: str
    is_speculators: bool
    body: str
    is_settled: bool = True
    is_stated: bool = False


def read_kind(facts: Facts, stated_family: Family | None = None) -> Kind:
    """Resolve family, backbone and format; two declarations that differ are an error.

    Args:
        facts: the config.
        stated_family: the user's own word, which holds against every label of the config.
    """
    stated = facts.raw("architectures")
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    if stated is not None and not names:
        facts.error(f"architectures: got {stated!r:.60}, expected a list of names")
    architecture = names[0] if names else ""
    is_speculators = any(
        facts.raw(key) is not None
        for key in ("speculators_model_type", "speculators_version", "speculators_config")
    )
    body = "transformer_layer_config." if facts.table("transformer_layer_config") else ""
    if body:
        facts.adopt(body, LAYER_KEYS)
        if facts.raw(f"{body}layer_types") is None:  # beside them it says nothing
            facts.adopt(body, ("max_window_layers",))
    refuse_backbones(facts, body, architecture)
    family = _family(facts, architecture, stated_family, is_speculators=is_speculators)
    backbone = _backbone(facts, body, architecture)
    return Kind(
        family or Family.DFLASH,
        backbone,
        _format(facts, architecture, is_speculators),
        architecture,
        is_speculators,
        body,
        is_settled=family is not None,
        is_stated=stated_family is not None,
    )


LABELS = (
    "speculators_model_type",
    "speculators_config.algorithm",
    "dflash_config.projector_type",
    "projector_type",
)
OPTION = "--family"


def _named(facts: Facts, architecture: str) -> dict[str, Family]:
    """Return the families of all known names among the architectures, by their place."""
    names, found = facts.raw("architectures"), {}
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and name in ARCHITECTURES:
            place = "architectures" if name == architecture else f"architectures, {name}"
            found[place] = ARCHITECTURES[name][0]
    return found


def _family(
    facts: Facts, architecture: str, stated: Family | None, *, is_speculators: bool
) -> Family | None:
    """Return the family that the user or the config names; None where nothing known does.

    speculators writes the projector "dflash" into configs of every family: no other head corrects
    the drafts.
    """
    claims = _named(facts, architecture)
    for path in LABELS:
        value = facts.raw(path)
        is_head = is_speculators and path == "projector_type" and value == "dflash"
        if value is None or value == "domino" or is_head:
            continue
        if value in [family.value for family in Family]:
            claims[path] = Family(value)
        elif stated is None:
            facts.error(
                f"{path}: {value!r:.60} is not supported, expected one of "
                f"{[family.value for family in Family]}",
                unsupported=True,
            )
    if stated is not None:
        others = [f"{path} ({family.value})" for path, family in claims.items() if family != stated]
        if others:
            facts.warnings.append(
                f"family {stated.value} is taken from {OPTION}, against {', '.join(others)}"
            )
        facts.say("family", f"{OPTION}, stated by the user")
        return stated
    if architecture and architecture not in ARCHITECTURES:
        facts.error(
            f"architectures: {architecture!r} is not a supported drafter, expected one of "
            f"{sorted(ARCHITECTURES)}",
            f"if it is one of these under another name, say which: {OPTION} dflash, dflash2 or "
            "dspark; its keys and tensors are checked all the same",
            unsupported=True,
        )
        facts.is_whole = False
    if len(set(claims.values())) > 1:
        shown = {path: family.value for path, family in claims.items()}
        facts.error(
            f"family is stated with different values: {shown}",
            f"say which one holds with {OPTION}",
        )
    if not claims:
        if not architecture:
            facts.error(
                f"family is missing, expected architectures to name one of {sorted(ARCHITECTURES)}",
                f"is this a drafter's config.json? If so, {OPTION} says which family it is",
            )
        facts.is_whole = False
        return None
    path, family = next(iter(claims.items()))
    facts.say("family", path)
    return family


def _backbone(facts: Facts, body: str, architecture: str) -> Backbone:
    path = f"{body}model_type"
    model_type = facts.raw(path)
    by_name = ARCHITECTURES.get(architecture, (None, None))[1]
    if model_type is None:
        facts.say("backbone", "architectures")
        return by_name or Backbone.QWEN3
    found = MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    if found is None:
        if not isinstance(model_type, str) or model_type not in MLA_TYPES | V4_TYPES:
            facts.error(
                f"{path}: {model_type!r:.60} layers are not supported, expected one of "
                f"{sorted(MODEL_TYPES)}",
                unsupported=True,
            )
        found = by_name or Backbone.QWEN3
    if by_name is not None and found is not by_name and architecture in DEEPSPEC:
        facts.error(f"architectures says {architecture}, but {path} is {model_type!r}")
    if found is Backbone.GEMMA4 and by_name is not Backbone.GEMMA4:
        facts.error(
            f"{path}: {model_type!r} layers in a {architecture or 'drafter'} are not supported",
            "Gemma-4 layers are known from DeepSpec's Gemma4DSparkModel",
            unsupported=True,
        )
    facts.say("backbone", path)
    return found


def _format(facts: Facts, architecture: str, is_speculators: bool) -> str:
    facts.say("checkpoint_format", "keys of the config")
    if is_speculators:
        return "speculators"
    if architecture in DEEPSPEC:
        return "deepspec"
    if architecture == "MuseGlimmerAssistantModel":
        return "muse"
    return "z-lab"


REFUSED: dict[str, str] = {
    "dflash_query_causal": "query-causal DFlash",
    "log_snr_conditioning": "log-SNR conditioning",
    "enable_qwen35_gated_q_proj": "gated query projections",
    "emb_dim": "the domino head's embedding",
    "norm_before_residual": "EAGLE-3's order of norms",
    "norm_before_fc": "EAGLE-3's order of norms",
}


DOMINO = ("emb_dim",)  # say nothing beside another projector


def refuse_backbones(facts: Facts, body: str, architecture: str) -> None:
    """Add a finding for every layer kind that is understood and not supported."""

    def refuse(what: str, evidence: str) -> None:
        facts.error(
            f"{evidence}: {what} is not supported",
            "only dense GQA drafters (Qwen3 and Gemma-4 layers) can be exported",
            unsupported=True,
        )
        facts.is_whole = False

    stated = facts.raw("model_type")
    model_type = stated if isinstance(stated, str) else ""
    if _is_embedded(facts, architecture, model_type):
        refuse(
            "a DSpark drafter embedded in a DeepSeek-V4 target (mtp.* stages)",
            f"model_type {model_type!r}",
        )
    for key in ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"):
        if facts.raw(f"{body}{key}") not in (None, 0):
            refuse("multi-head latent attention (MLA)", f"{body}{key}")
            break
    else:
        if model_type in MLA_TYPES:
            refuse("multi-head latent attention (MLA)", f"model_type {model_type!r}")
    experts = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    if stated := [f"{body}{key}" for key in experts if facts.raw(f"{body}{key}") not in (None, 0)]:
        refuse("a mixture of experts (MoE)", ", ".join(stated))
    for key in ("enable_moe_block", "hidden_size_per_layer_input", "num_kv_shared_layers"):
        if facts.raw(f"{body}{key}") not in (None, False, 0):
            refuse("this layer extension", f"{body}{key}")
    for scope in ("", "dflash_config.", "dspark_config."):
        if facts.raw(f"{scope}projector_type") == "domino":
            refuse("the domino projector (GRU head)", f"{scope}projector_type")
        for key, what in REFUSED.items():
            is_idle = key in DOMINO and facts.raw(f"{scope}projector_type") in ("dflash", "dspark")
            if facts.raw(scope + key) not in (None, False) and not is_idle:
                refuse(what, scope + key)
    mode = facts.raw("dflash_config.attention_mode")
    if mode not in (None, "gqa"):
        refuse(f"attention_mode {mode!r:.40}", "dflash_config.attention_mode")
    if facts.raw("model_arch") not in (None, "transformer"):
        refuse(f"model_arch {facts.raw('model_arch')!r:.40}", "model_arch")
    if (
        facts.raw("use_aux_hidden_state") is False
        or facts.raw("dflash_config.use_aux_hidden_state") is False
    ):
        refuse("a drafter without target hidden states", "use_aux_hidden_state")


def _is_embedded(facts: Facts, architecture: str, model_type: str) -> bool:
    """Whether a drafter is part of its target."""
    return (
        architecture.startswith("DeepseekV4")
        or model_type in V4_TYPES
        or (
            facts.raw("dspark_noise_token_id") is not None and facts.raw("n_mtp_layers") is not None
        )
    )
