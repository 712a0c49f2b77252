"""A decoder target's config to checked facts.

Keys of target configs that only other layers have a use for: accepted switched off.

Each changes what a model computes. The layers here compute what it says while it has one of the
values listed with it; with any other they would be another model, and the key is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftrt.codec import shown
from draftrt.errors import ChoiceError, DraftrtError, SpecError, UnsupportedError
from draftrt.export.checkpoint.claims import refuse_quantised
from draftrt.export.checkpoint.gemma4 import WRAPPER, read_gemma4
from draftrt.export.checkpoint.safetensors import CONFIG, read_config
from draftrt.export.checkpoint.target import EMBED, TargetCheckpoint
from draftrt.export.config.keys import ACTIVATIONS, HARMLESS, refuse_keys
from draftrt.export.config.layers import FULL, SLIDING
from draftrt.export.config.reader import Facts
from draftrt.export.config.rope import read_rope
from draftrt.export.config.targets import lfm2, muse_glimmer, qwen3_5
from draftrt.export.config.targets.shared import check_model_type
from draftrt.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What an architecture fixes beyond its config.

    Attributes:
        model_type: by which transformers chooses its code.
        qk_norm: queries and keys are normed a head.
        qkv_bias: biases of q, k, v: always, or as ``attention_bias`` says (None).
        output_bias: bias of the output projection: never, or as ``attention_bias`` says (None).
        head_dim: elements of a head where the config is silent; None for H / N.
        has_mlp_bias: the config's ``mlp_bias`` is honoured.
        theta: of the rotary embedding where the config is silent; None where it has to say it.
        windows: when ``sliding_window`` holds: never, ``always``, or as a switch of that name says.
        default_window: of a config without ``sliding_window``; one that says null has none.
    """

    model_type: str
    qk_norm: bool = False
    qkv_bias: bool | None
    output_bias: bool | None
    head_dim: int | None = None
    has_mlp_bias: bool = False
    theta: float | None = None
    windows: str = ""
    default_window: int | None = None


# Llama 1 and 2 were published without rope_theta; every runtime takes 10,000 for these two.
FLAVOURS = {
    "Qwen3ForCausalLM": Flavour(
        model_type="qwen3",
        qk_norm=True,
        qkv_bias=None,
        output_bias=None,
        head_dim=128,
        windows="use_sliding_window",
    ),
    "Qwen2ForCausalLM": Flavour(
        model_type="qwen2", qkv_bias=True, output_bias=False, windows="use_sliding_window"
    ),
    "LlamaForCausalLM": Flavour(
        model_type="llama", qkv_bias=None, output_bias=None, has_mlp_bias=True, theta=1e4
    ),
    "MistralForCausalLM": Flavour(
        model_type="mistral",
        qkv_bias=False,
        output_bias=False,
        theta=1e4,
        windows="always",
        default_window=4096,
    ),
}
WAY_OUT = "the Hugging Face port runs this target (--no-target-graph)"
GEMMA4 = (
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
)

READERS = {
    **dict.fromkeys(lfm2.ARCHITECTURES, lfm2.read_lfm2),
    **dict.fromkeys(muse_glimmer.ARCHITECTURES, muse_glimmer.read_muse_glimmer),
    **dict.fromkeys(qwen3_5.ARCHITECTURES, qwen3_5.read_qwen3_5),
}


def read_decoder(target: TargetCheckpoint, ignore: frozenset[str] = frozenset()) -> DecoderSpec:
    """Resolve a target's layers.

    Args:
        target: the target.
        ignore: unknown keys of its config that the user declares to be without effect.

    Raises:
        DraftrtError: the architecture is not one of `FLAVOURS`, `GEMMA4` and `READERS`, or its
            config asks for something these layers do not have; every finding at once.
    """
    assert target.folder is not None
    facts = Facts(read_config(target.folder), target.folder / CONFIG)
    spec = _read(facts, target, ignore)
    facts.findings.sort(key=lambda finding: not isinstance(finding, ChoiceError))
    facts.done()
    assert spec is not None
    return spec


def try_decoder(
    target: TargetCheckpoint, ignore: frozenset[str] = frozenset()
) -> tuple[DecoderSpec | None, DraftrtError | None]:
    """Resolve a target's layers, or return why they cannot be exported.

    Raises:
        ChoiceError: ``ignore`` names what may not be ignored.
    """
    try:
        return read_decoder(target, ignore), None
    except (UnsupportedError, SpecError) as error:
        return None, error


def say_left_out(problem: DraftrtError) -> str:
    """Return what it costs that a target has no graph, and how to get one."""
    return (
        f"no target graph: {problem.message}\n"
        + (f"  Hint: {problem.hint}\n" if problem.hint else "")
        + "  Without it the target runs in PyTorch with transformers, which have to be installed "
        "where the bundle runs: slower, in more memory, from the target's own folder, and with no "
        "plan. --target-graph makes this an error."
    )


def _read(facts: Facts, target: TargetCheckpoint, ignore: frozenset[str]) -> DecoderSpec | None:
    flavour = FLAVOURS.get(target.spec.architecture)
    is_gemma4 = target.spec.architecture in GEMMA4
    reader = READERS.get(target.spec.architecture)
    if flavour is None and not is_gemma4 and reader is None:
        why = " (a mixture of experts)" if target.spec.architecture in qwen3_5.EXPERTS else ""
        facts.error(
            f"target architecture {target.spec.architecture!r}{why} cannot be exported, expected "
            f"one of {sorted([*FLAVOURS, *GEMMA4, *READERS])}",
            WAY_OUT,
            unsupported=True,
        )
        return None
    facts.raw("architectures")
    body = "text_config." if target.spec.architecture.endswith(WRAPPER) else ""
    if flavour is not None:
        fields = _flavoured(facts, flavour)
    elif reader is not None:
        fields = reader(facts, body, _prefix(target))
        if target.spec.architecture in qwen3_5.ARCHITECTURES:
            refuse_switched_on(facts, body)
    else:
        fields = read_gemma4(facts, target)
    for name in ("gemma4", "muse", "delta", "short_conv"):
        facts.sources.setdefault(name, "architectures")
    fields |= {
        "vocab_size": target.spec.vocab_size,
        "table_rows": target.spec.table_rows or target.spec.vocab_size,
        "tie_word_embeddings": _is_tied(facts, target),
    }
    for name in ("vocab_size", "table_rows"):
        facts.say(name, target.spec.sources[name])
    refuse_quantised(facts, target.decoded)
    unknown = facts.unknown_keys(body[:-1], HARMLESS)
    refuse_keys(facts, unknown, ignore, of="target:", hint=WAY_OUT)
    if not facts.is_whole:
        return None
    used = {
        name: facts.sources[name] for name in DecoderSpec.__dataclass_fields__ if name != "sources"
    }
    return DecoderSpec(**fields, sources=used)


def _prefix(target: TargetCheckpoint) -> str:
    """Return what a checkpoint puts before ``embed_tokens``."""
    table = target.tables.get(EMBED)
    return "" if table is None else table.name.removesuffix(EMBED)


def _flavoured(facts: Facts, flavour: Flavour) -> dict[str, Any]:
    heads = facts.number("num_heads", ["num_attention_heads"], low=1, high=1 << 14)
    hidden = facts.number("hidden_size", ["hidden_size"], low=2, high=1 << 24)
    size = flavour.head_dim or hidden // heads
    fields: dict[str, Any] = {
        "hidden_size": hidden,
        "num_heads": heads,
        "head_dim": facts.number(
            "head_dim",
            ["head_dim"],
            low=2,
            high=1 << 14,
            default=size,
            why="architecture's default",
        ),
        "num_kv_heads": facts.number(
            "num_kv_heads",
            ["num_key_value_heads"],
            low=1,
            high=1 << 14,
            default=heads,
            why="num_heads",
        ),
        "intermediate_size": facts.number("intermediate_size", ["intermediate_size"], low=1),
        "num_layers": facts.number("num_layers", ["num_hidden_layers"], low=1, high=4096),
        "rms_norm_eps": facts.real(
            "rms_norm_eps", ["rms_norm_eps"], default=1e-6, why="default 1e-6"
        ),
        "activation": facts.text(
            "activation", ["hidden_act"], choices=ACTIVATIONS, default="silu", why="default silu"
        ),
        "qk_norm": flavour.qk_norm,
        **_biases(facts, flavour),
    }
    facts.say("qk_norm", "architectures")
    check_model_type(facts, "model_type", flavour.model_type)
    fields["windows"] = _windows(facts, flavour, fields["num_layers"])
    types = tuple(FULL if window is None else SLIDING for window in fields["windows"])
    fields["rope"] = read_rope(facts, "", fields["head_dim"], types, default_theta=flavour.theta)
    refuse_switched_on(facts)
    for key in ("vocab_size", "unpadded_vocab_size", "original_max_position_embeddings"):
        facts.raw(key)
    return fields


def _is_tied(facts: Facts, target: TargetCheckpoint) -> bool:
    """Whether the head is the embedding, as the tensors say."""
    head, embed = target.tables.get("lm_head.weight"), target.tables.get("embed_tokens.weight")
    facts.say("tie_word_embeddings", "tensors")
    return head is not None and embed is not None and head.name == embed.name


def _biases(facts: Facts, flavour: Flavour) -> dict[str, bool]:
    stated = facts.flag("qkv_bias", ["attention_bias"], default=False, why="default false")
    mlp = facts.flag("mlp_bias", ["mlp_bias"], default=False, why="default false")
    if mlp and not flavour.has_mlp_bias:
        facts.error("mlp_bias is true, but this architecture has none")
    facts.say("output_bias", facts.sources.get("qkv_bias", "attention_bias"))
    return {
        "qkv_bias": stated if flavour.qkv_bias is None else flavour.qkv_bias,
        "output_bias": stated if flavour.output_bias is None else flavour.output_bias,
        "mlp_bias": mlp,
    }


def _windows(facts: Facts, flavour: Flavour, num_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer, as transformers derives it."""
    window, types = facts.raw("sliding_window"), facts.raw("layer_types")
    first, switch = facts.raw("max_window_layers"), facts.raw("use_sliding_window")
    facts.say("windows", "layer_types" if types is not None else "sliding_window")
    if "sliding_window" not in facts.config:
        window = flavour.default_window
    is_on = flavour.windows == "always" or (flavour.windows != "" and switch is True)
    if switch not in (None, True, False):
        facts.error(f"use_sliding_window: got {shown(switch)}, expected true or false")
    if is_on and window is None and "sliding_window" not in facts.config:
        facts.error("use_sliding_window is true, and sliding_window is missing")
    if window is None or not is_on:
        return _no_windows(facts, types, num_layers)
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        facts.error(f"sliding_window: got {shown(window)}, expected a positive integer")
        return (None,) * num_layers
    if flavour.windows == "always" and types is None:
        return (window,) * num_layers
    if types is None:
        if not isinstance(first, int) or isinstance(first, bool):
            facts.error(
                "use_sliding_window is true, and neither layer_types nor max_window_layers says "
                f"from which layer on: got {shown(first)}"
            )
            first = 0
        return tuple(window if i >= first else None for i in range(num_layers))
    if not _are_types(types, num_layers):
        facts.error(f"layer_types: got {shown(types)}, expected {num_layers} of {FULL}, {SLIDING}")
        return (None,) * num_layers
    return tuple(window if kind == SLIDING else None for kind in types)


def _no_windows(facts: Facts, types: Any, num_layers: int) -> tuple[None, ...]:
    """Return full attention for every layer, unless ``layer_types`` says otherwise."""
    if types is not None and not (_are_types(types, num_layers) and SLIDING not in types):
        facts.error(
            f"layer_types: got {shown(types)}, expected {num_layers} of {FULL}: no window is set",
        )
    return (None,) * num_layers


def _are_types(types: Any, num_layers: int) -> bool:
    return (
        isinstance(types, list)
        and len(types) == num_layers
        and all(kind in (FULL, SLIDING) for kind in types)
    )


NO, ONE = (False, 0), (1,)  # 0 == False and 1 == 1.0
# what a key switches on: key to the values that keep it off
OFF: tuple[tuple[str, Mapping[str, tuple[Any, ...]]], ...] = (
    (
        "a mixture of experts",
        {
            "num_experts": NO,
            "num_local_experts": NO,
            "n_routed_experts": NO,
            "enable_moe_block": NO,
        },
    ),
    ("positions on several axes", {"use_mrope": NO}),
    ("layers without positions", {"no_rope_layer_interval": NO}),
    ("positions as a bias of the scores", {"alibi": NO, "use_alibi": NO}),
    ("other positions in long texts", {"use_dynamic_ntk": NO, "use_logn_attn": NO}),
    ("attention by chunks", {"attention_chunk_size": NO, "dual_chunk_attention_config": ({},)}),
    ("attention to later tokens", {"use_bidirectional_attention": NO}),
    ("clipped queries, keys and values", {"clip_qkv": NO}),
    (
        "a bound of scores or logits",
        {"final_logit_softcapping": NO, "attn_logit_softcapping": NO, "logit_softcapping": NO},
    ),
    (
        "scaled rows",
        {
            "logit_scale": (*NO, *ONE),
            "logits_scaling": ONE,
            "embedding_multiplier": ONE,
            "residual_multiplier": ONE,
            "attention_value_scale": ONE,
            "scale_emb": ONE,
        },
    ),
    (
        "caches or embeddings that layers share",
        {
            "num_kv_shared_layers": NO,
            "hidden_size_per_layer_input": NO,
            "use_double_wide_mlp": NO,
        },
    ),
    ("a norm around whole projections", {"qk_layernorm": NO, "qk_layer_norms": NO}),
)


def refuse_switched_on(facts: Facts, body: str = "") -> None:
    """Add a finding for every key of `OFF` that is on, and for what else these layers cannot do."""
    for what, keys in OFF:
        for key, off in keys.items():
            value = facts.raw(f"{body}{key}")
            if value is not None and value not in off:
                facts.error(
                    f"{body}{key}: got {shown(value)}, expected {shown(off[0])}: {what} is not "
                    "known to these layers",
                    unsupported=True,
                )
    for key, check in CHECKS.items():
        if (value := facts.raw(f"{body}{key}")) is not None:
            check(facts, f"{body}{key}", value)


def _interleaved(facts: Facts, key: str, value: Any) -> None:
    if value is False:
        return
    if value is not True:
        facts.error(f"{key}: got {shown(value)}, expected true or false")
        return
    facts.error(
        f"{key}: got true: neighbouring elements of a head would be turned together, and "
        "transformers, which these layers follow, turns its two halves",
        "convert the checkpoint to halves, as transformers' own conversion scripts do",
        unsupported=True,
    )


def _activation(facts: Facts, key: str, value: Any) -> None:
    if value not in ("swiglu", facts.config.get("hidden_act")):
        facts.error(
            f"{key}: got {shown(value)}, expected 'swiglu' or what hidden_act says",
            unsupported=True,
        )


def _no_rope(facts: Facts, key: str, value: Any) -> None:
    if not isinstance(value, list) or any(one != 1 for one in value):
        facts.error(
            f"{key}: got {shown(value)}, expected 1 for every layer: layers without positions are "
            "not known to these layers",
            unsupported=True,
        )


CHECKS: Mapping[str, Callable[[Facts, str, Any], None]] = {
    "rope_interleaved": _interleaved,
    "activation": _activation,
    "no_rope_layers": _no_rope,
}
