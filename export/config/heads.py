"""Heads of a config: Markov, confidence, selector, convolution, logit transforms."""

from __future__ import annotations

from collections.abc import Mapping

from draftrt.export.config.family import Kind
from draftrt.export.config.keys import MARKOV_TYPES
from draftrt.export.config.reader import Facts
from draftrt.spec import ConfidenceSpec, ConvSpec, Family, MarkovSpec, SelectorSpec

Shapes = Mapping[str, tuple[int, ...]]


def search(key: str) -> list[str]:
    """Return where a head's key may stand, first match first."""
    return [f"dspark_config.{key}", f"dflash_config.{key}", f"dspark_{key}", key]


def read_markov(facts: Facts, kind: Kind, shapes: Shapes) -> MarkovSpec | None:
    """Resolve the Markov head; absent keys are taken from the tensors, never from a name."""
    table = shapes.get("markov_head.markov_w1.weight")
    found = table[1] if table is not None and len(table) == 2 else 0
    rank = facts.number(
        "markov",
        search("markov_rank"),
        low=0,
        high=1 << 16,
        default=found,
        why="tensor markov_head.markov_w1.weight" if table else "no key and no tensor: none",
    )
    source = facts.sources.get("markov", "markov_rank")
    type_ = facts.text(
        "markov",
        search("markov_head_type"),
        choices=MARKOV_TYPES,
        default="vanilla",
        why="default vanilla",
    )
    if rank == 0:
        facts.say("markov", source)
        return None
    facts.say("markov", f"{source}; type: {facts.sources.get('markov')}")
    return MarkovSpec(type=type_, rank=rank)


def read_confidence(
    facts: Facts, kind: Kind, shapes: Shapes, markov: MarkovSpec | None, hidden_size: int
) -> ConfidenceSpec | None:
    """Resolve the confidence head from its four spellings and its tensors."""
    has_tensor = "confidence_head.proj.weight" in shapes
    paths = search("enable_confidence_head") + search("use_confidence_head")
    alpha = next((a for p in search("confidence_head_alpha") if (a := facts.raw(p))), None)
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool) and alpha > 0:
        default, why = True, "confidence_head_alpha"
    else:
        default, why = (
            has_tensor,
            "tensor confidence_head.proj.weight" if has_tensor else "no key and no tensor",
        )
    enabled = facts.flag("confidence", paths, default=default, why=why)
    source = facts.sources.get("confidence", "enable_confidence_head")
    width = hidden_size + (markov.rank if markov is not None else 0)
    sees_markov = width != hidden_size and shapes.get("confidence_head.proj.weight") == (1, width)
    with_markov = facts.flag(
        "confidence",
        search("confidence_head_with_markov"),
        default=sees_markov,
        why="width of confidence_head.proj.weight",
    )
    with_source = facts.sources.get("confidence")
    if not enabled:
        facts.say("confidence", source)
        if has_tensor:
            facts.error(
                "the confidence head is switched off, but its tensors are in the checkpoint",
                "set enable_confidence_head true or remove the tensors",
            )
        return None
    facts.say("confidence", f"{source}; with_markov: {with_source}")
    if with_markov and markov is None:
        facts.error(
            "confidence_head_with_markov is true, but there is no Markov head (rank 0)",
            "one of the two keys is wrong",
        )
        with_markov = False
    return ConfidenceSpec(with_markov=with_markov, has_bias="confidence_head.proj.bias" in shapes)


def check_heads(
    facts: Facts, kind: Kind, markov: MarkovSpec | None, confidence: ConfidenceSpec | None
) -> None:
    """Add one finding where the heads are not those of the family that is stated."""
    has = [f"markov_rank {markov.rank}"] if markov is not None else []
    has += ["a confidence head"] if confidence is not None else []
    if has and kind.is_settled and kind.family is not Family.DSPARK:
        facts.error(
            f"{' and '.join(has)} in a {kind.family.value} drafter ({facts.sources.get('family')})",
            "such heads belong to DSpark: if it is one, say so with --family dspark; which of the "
            "two is wrong is not guessed",
        )
        facts.is_whole = False  # which tensors there should be is open


def read_dflash2(facts: Facts, kind: Kind) -> tuple[SelectorSpec | None, ConvSpec | None]:
    """Resolve selector and convolution; DFlash2 must state their sizes, others must not."""
    keys = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
    if kind.family is not Family.DFLASH2:
        stated = [key for key in keys if facts.raw(f"dflash_config.{key}") is not None]
        if stated and kind.is_settled:
            facts.error(
                f"dflash_config has {stated} in a {kind.family.value} drafter "
                f"({facts.sources.get('family')})",
                "they belong to DFlash2: if it is one, say so with --family dflash2",
            )
            facts.is_whole = False
        for fact in ("selector", "conv"):
            facts.say(fact, f"none in family {kind.family.value}")
        return None, None
    rank, top_k, taps, group = (
        facts.number(key, [f"dflash_config.{key}", key], low=1, high=1 << 16) for key in keys
    )
    for key in keys:
        facts.sources.pop(key, None)
    facts.say("selector", "dflash_config.selector_rank, selector_top_k")
    facts.say("conv", "dflash_config.conv_kernel_size, conv_group_size")
    return SelectorSpec(rank=rank, top_k=top_k), ConvSpec(kernel_size=taps, group_size=group)


def read_output_multiplier(facts: Facts, markov: MarkovSpec | None) -> float:
    """Resolve the factor on logits (``output_multiplier`` times ``logit_scale``)."""
    multiplier = facts.real(
        "output_multiplier",
        ["dflash_config.output_multiplier", "output_multiplier"],
        default=1.0,
        why="default 1",
    )
    source = facts.sources.get("output_multiplier", "")
    scale = facts.real(
        "output_multiplier", ["dflash_config.logit_scale", "logit_scale"], default=1.0, why=source
    )
    if scale != 1.0 and markov is not None:
        facts.error(
            f"logit_scale {scale} together with a Markov head",
            "runtimes disagree whether it multiplies the Markov bias; nothing is guessed",
            unsupported=True,
        )
    return multiplier * scale


def cap_paths(body: str) -> list[str]:
    """Return where the soft cap may stand, first match first."""
    key = "final_logit_softcapping"
    return list(dict.fromkeys([f"dflash_config.{key}", key, f"{body}{key}"]))


def read_soft_cap(facts: Facts, body: str) -> float | None:
    """Resolve c of ``c * tanh(z / c)``; 0 and absent mean off."""
    paths = cap_paths(body)
    stated = [path for path in paths if facts.raw(path) not in (None, 0, 0.0)]
    if not stated:
        off = [path for path in paths if facts.raw(path) is not None]
        facts.say("final_logit_softcapping", off[0] if off else "default off")
        return None
    return facts.real("final_logit_softcapping", stated)
