"""What a user may choose about an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from draftrt.quantization import Prefer, Quantization
from draftrt.spec import DecoderSpec, DrafterSpec, Family, Precision, Profile


class WeightMode(str, Enum):
    """Whether a bundle holds its weights or points to those of the checkpoint."""

    COPY = "copy"
    LINK = "link"


DEFAULT_CONTEXT = 4096
MOST_CONTEXT = 2**24  # positions are float32 in the rotary tables: whole up to there
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the user chooses about an export.

    Attributes:
        precision: element type of weights and caches.
        profile: operators the graph may use.
        max_context: rows of each cache; None: the declared positions, at most `DEFAULT_CONTEXT`.
        extra_outputs: further outputs of the graph (``logits``, ``hidden``, ...).
        sampled: the drafts can be drawn at a temperature, by noise among the graph's inputs.
        sample_from_anchor: alignment where the config leaves it open.
        family: family where the config's labels are wrong.
        ignore_keys: unknown config keys declared to be without effect.
        quantization: graph name (``draft``, ``target``) to the parts whose weights are stored
            quantised.
        target_graph: whether the target's graph is exported too; None: where it can be, and said
            where it cannot.
        force: replace an existing bundle.
        weights: whether the bundle holds its weights or points to those of the checkpoint.
        hash_all: hash the checkpoint's weights whole; see `draftrt.files` for what is hashed
            otherwise.
        sms: compute capabilities of the GPUs that the graphs are for, where more than the least of
            them may be asked for; empty: any from 86 on.
        prefer: which of several forms holds a checkpoint's own codes; None: what runs fast on all.
    """

    precision: Precision = Precision.FP32
    profile: Profile = Profile.FIXED
    max_context: int | None = None
    extra_outputs: tuple[str, ...] = ()
    sampled: bool = False
    sample_from_anchor: bool | None = None
    family: Family | None = None
    ignore_keys: frozenset[str] = field(default_factory=frozenset)
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    target_graph: bool | None = None
    force: bool = False
    weights: WeightMode = WeightMode.COPY
    hash_all: bool = False
    sms: tuple[int, ...] = ()
    prefer: Prefer | None = None


def max_context(options: ExportOptions, *specs: DrafterSpec | DecoderSpec | None) -> int:
    """Return the rows of each cache: as wished, else what every model declares, with a limit."""
    declared = [spec.rope.max_position_embeddings for spec in specs if spec is not None]
    return options.max_context or min(DEFAULT_CONTEXT, *declared)
