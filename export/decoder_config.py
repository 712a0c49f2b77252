"""A target's config.json to a `DecoderSpec`, for the dense decoders that can be exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftrt.export.checkpoint_folder import CONFIG, read_config
from draftrt.export.choices import ACTIVATIONS
from draftrt.export.config_attention import FULL, SLIDING
from draftrt.export.config_rope import read_rope
from draftrt.export.facts import Facts
from draftrt.export.gemma4_config import read_gemma4, unknown_keys
from draftrt.export.harmless import HARMLESS
from draftrt.export.target import Target
from draftrt.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Flavour:
    """What an architecture fixes beyond its config.

    Attributes:
        qk_norm: queries and keys are normed a head.
        qkv_bias: biases of q, k, v: always, or as ``attention_bias`` says (None).
        output_bias: bias of the output projection: never, or as ``attention_bias`` says (None).
        head_dim: elements of a head where the config is silent; None for H / N.
        has_mlp_bias: the config's ``mlp_bias`` is honoured.
    """

    qk_norm: bool
    qkv_bias: bool | None
    output_bias: bool | None
    head_dim: int | None
    has_mlp_bias: bool = False


FLAVOURS = {
    "Qwen3ForCausalLM": Flavour(qk_norm=True, qkv_bias=None, output_bias=None, head_dim=128),
    "Qwen2ForCausalLM": Flavour(qk_norm=False, qkv_bias=True, output_bias=False, head_dim=None),
    "LlamaForCausalLM": Flavour(
        qk_norm=False, qkv_bias=None, output_bias=None, head_dim=None, has_mlp_bias=True
    ),
    "MistralForCausalLM": Flavour(qk_norm=False, qkv_bias=False, output_bias=False, head_dim=None),
}


GEMMA4 = (
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
)


def read_decoder(target: Target) -> DecoderSpec:
    """Resolve a target's layers.

    Raises:
        DraftrtError: the architecture is not one of `FLAVOURS` and `GEMMA4`, or its config asks for
            something these layers do not have; every finding at once.
    """
    assert target.folder is not None
    facts = Facts(read_config(target.folder), target.folder / CONFIG)
    spec = _read(facts, target)
    facts.done()
    assert spec is not None
    return spec


def _read(facts: Facts, target: Target) -> DecoderSpec | None:
    flavour = FLAVOURS.get(target.spec.architecture)
    is_gemma4 = target.spec.architecture in GEMMA4
    if flavour is None and not is_gemma4:
        facts.error(
            f"target architecture {target.spec.architecture!r} cannot be exported, expected one of "
            f"{sorted([*FLAVOURS, *GEMMA4])}",
            "run it through the Hugging Face port instead (--no-target-graph)",
            unsupported=True,
        )
        return None
    facts.raw("architectures")
    fields = _flavoured(facts, flavour) if flavour is not None else read_gemma4(facts, target)
    fields |= {
        "vocab_size": target.spec.vocab_size,
        "table_rows": target.spec.table_rows or target.spec.vocab_size,
        "tie_word_embeddings": _is_tied(facts, target),
    }
    for name in ("vocab_size", "table_rows"):
        facts.say(name, target.spec.sources[name])
    _refuse(facts, unknown_keys(facts, target) if is_gemma4 else facts.unknown_keys("", HARMLESS))
    if not facts.is_whole:
        return None
    used = {
        name: facts.sources[name] for name in DecoderSpec.__dataclass_fields__ if name != "sources"
    }
    return DecoderSpec(**fields, sources=used)


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
    fields["windows"] = _windows(facts, fields["num_layers"])
    types = tuple(FULL if window is None else SLIDING for window in fields["windows"])
    fields["rope"] = read_rope(facts, "", fields["head_dim"], types)
    for key in ("num_experts", "num_local_experts", "logit_scale", "final_logit_softcapping"):
        if facts.raw(key) not in (None, 0):
            facts.error(f"{key}: not known to these layers", unsupported=True)
    for key in ("vocab_size", "unpadded_vocab_size"):
        facts.raw(key)
    facts.say("gemma4", "architectures")
    return fields


def _is_tied(facts: Facts, target: Target) -> bool:
    """Whether the head is the embedding, as the tensors say."""
    head, embed = target.tables.get("lm_head.weight"), target.tables.get("embed_tokens.weight")
    facts.say("tie_word_embeddings", "tensors")
    return head is not None and embed is not None and head.name == embed.name


def _biases(facts: Facts, flavour: Flavour) -> dict[str, bool]:
    stated = facts.flag("qkv_bias", ["attention_bias"], default=False, why="default false")
    mlp = facts.flag("mlp_bias", ["mlp_bias"], default=False, why="default false")
    if mlp and not flavour.has_mlp_bias:
        facts.error("mlp_bias is true, but this architecture has none")
    facts.say("output_bias", facts.sources["qkv_bias"])
    return {
        "qkv_bias": stated if flavour.qkv_bias is None else flavour.qkv_bias,
        "output_bias": stated if flavour.output_bias is None else flavour.output_bias,
        "mlp_bias": mlp,
    }


def _windows(facts: Facts, num_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer, as transformers derives it."""
    window, types = facts.raw("sliding_window"), facts.raw("layer_types")
    first, switch = facts.raw("max_window_layers"), facts.raw("use_sliding_window")
    facts.say("windows", "layer_types" if types is not None else "sliding_window")
    is_mistral = facts.config.get("model_type") == "mistral"
    if window is None or (switch is not True and not is_mistral):
        return (None,) * num_layers
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        facts.error(f"sliding_window: got {window!r:.40}, expected a positive integer")
        return (None,) * num_layers
    if types is None:
        start = first if isinstance(first, int) and not isinstance(first, bool) else 0
        return tuple(window if is_mistral or i >= start else None for i in range(num_layers))
    if (
        not isinstance(types, list)
        or len(types) != num_layers
        or any(t not in (FULL, SLIDING) for t in types)
    ):
        facts.error(f"layer_types: got {types!r:.80}, expected {num_layers} of {FULL}, {SLIDING}")
        return (None,) * num_layers
    return tuple(window if kind == SLIDING else None for kind in types)


def _refuse(facts: Facts, unknown: list[str]) -> None:
    if facts.raw("quantization_config") is not None:
        facts.error("quantised targets cannot be exported", unsupported=True)
    if unknown:
        facts.error(
            f"keys that this version does not know: {unknown}",
            "the Hugging Face port runs this target (--no-target-graph)",
        )
