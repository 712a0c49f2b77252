"""Which weights a graph holds quantised, and how: names and choices, no arithmetic.

Weights alone are quantised: what a layer computes with stays in the graph's own element type.
`export/weights/quantize.py` has the arithmetic, docs/adr/0008 the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from draftrt.errors import SpecError, UnsupportedError

MIDDLE = 8  # of 4-bit codes, subtracted from those that have a minimum
BLOCK = 32  # int4: elements along the reduction axis that share a scale


class Scheme(str, Enum):
    """How a weight is stored.

    INT8 and FP8 (E4M3) have one scale for each output channel, INT4 one for each block of `BLOCK`
    elements along the reduction axis, or of half as many where that divides it and `BLOCK` does
    not. All are symmetric: zero is zero.
    """

    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"


class Part(str, Enum):
    """Weights that are quantised together, in the drafter and in the target alike."""

    LINEAR = "linear"
    HEAD = "head"
    EMBEDDING = "embedding"


Quantization = Mapping[Part, Scheme]


class Base(str, Enum):
    """What is added to every code times scale of a block, times the sum of the block's inputs.

    ``ZEROS``: zero points, by which codes are not around zero, times the scale. ``MINIMUMS``: what
    the lowest code stands for.
    """

    NONE = ""
    ZEROS = "zeros"
    MINIMUMS = "minimums"


class Prefer(str, Enum):
    """Which of several forms that hold a checkpoint's own codes is taken.

    ``EXACT``: no weight is rounded that a form can hold, and every product is one sum. ``SMALL``:
    the fewest bytes, on whatever GPUs they run.
    """

    EXACT = "exact"
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class KeptForm:
    """How a graph holds a weight that its checkpoint stores quantised: by the checkpoint's codes.

    Attributes:
        scheme: of the codes.
        block: inputs that share a scale; None for one an output channel.
        is_ordered: inputs are sorted by their groups, and gathered in that order.
        base: what is added, where codes alone are not the weight.
    """

    scheme: Scheme
    block: int | None = None
    is_ordered: bool = False
    base: Base = Base.NONE


DRAFT, TARGET = "draft", "target"  # names of the graphs of a bundle
PRODUCTS = (Part.LINEAR, Part.HEAD)  # what a scheme without a part stands for
LINEARS = (
    *(f"self_attn.{name}_proj.weight" for name in (*"qkvo", "gate")),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"linear_attn.{name}.weight" for name in ("in_proj_qkv", "in_proj_z", "out_proj")),
    "conv.in_proj.weight",
    "conv.out_proj.weight",
)
TABLES = ("embed_tokens.weight", "model.embed_tokens.weight")
HEAD = "lm_head.weight"


def part_of(name: str, *, is_product: bool) -> Part | None:
    """Return what a weight is part of; None for one that is never quantised.

    Args:
        name: its name in the graph.
        is_product: it is multiplied with, not looked up in: a tied table is the head there.
    """
    if is_product and (name == HEAD or name in TABLES):
        return Part.HEAD
    if not is_product and name in TABLES:
        return Part.EMBEDDING
    return Part.LINEAR if is_product and name.endswith(LINEARS) else None


def parse_quantization(values: Sequence[str]) -> dict[str, dict[Part, Scheme]]:
    """Return what ``int4``, ``head=int8``, ``embedding=int8``, ``draft:int4``, ... ask for.

    A scheme alone stands for linears and head; a part named beside it has its own. Both are for
    drafter and target, or for the one of them that is named; what names one goes before.

    Returns:
        Graph name, `DRAFT` or `TARGET`, to its parts.

    Raises:
        SpecError: no such graph, part or scheme, or two schemes for one part.
        UnsupportedError: NVFP4, or a scheme that a part does not come in.
    """
    graphs: dict[str, list[str]] = {"": [], DRAFT: [], TARGET: []}
    for value in values:
        graph, _, rest = value.rpartition(":")
        if graph not in graphs or (not graph and ":" in value):
            raise SpecError(f"{value}: got {graph!r} before the colon, expected draft or target")
        graphs[graph].append(rest)
    shared = _parse(graphs[""])
    return {graph: shared | _parse(graphs[graph]) for graph in (DRAFT, TARGET)}


def _parse(values: Sequence[str]) -> dict[Part, Scheme]:
    general: dict[Part, Scheme] = {}
    named: dict[Part, Scheme] = {}
    for value in values:
        part, equals, scheme = value.rpartition("=")
        into = named if equals else general
        for one in [_part(part, value)] if equals else PRODUCTS:
            chosen = _scheme(scheme, one, value)
            if into.setdefault(one, chosen) is not chosen:
                raise SpecError(
                    f"got {into[one].value} and {chosen.value} for {one.value}, expected one "
                    "scheme a part"
                )
    return general | named


def describe(quantization: Mapping[Part, Scheme]) -> str:
    """Return ``linear int4, head int8`` for people; empty when nothing is quantised."""
    return ", ".join(
        f"{part.value} {quantization[part].value}" for part in Part if part in quantization
    )


def _part(text: str, value: str) -> Part:
    parts = [part.value for part in Part]
    if text not in parts:
        raise SpecError(f"{value}: got part {text!r}, expected one of {parts}")
    return Part(text)


def _scheme(text: str, part: Part, value: str) -> Scheme:
    schemes = [scheme.value for scheme in Scheme]
    if text in ("nvfp4", "fp4"):
        raise UnsupportedError(
            f"{value}: got {text}, expected one of {schemes}",
            hint="its second level of scales runs on SM120 alone and ONNX Runtime has no kernel to "
            "check it with; int4 takes as many bytes and runs from SM80 on",
        )
    if text not in schemes:
        raise SpecError(f"{value}: got scheme {text!r}, expected one of {schemes}")
    if part is Part.EMBEDDING and text != Scheme.INT8.value:
        raise UnsupportedError(
            f"{value}: an embedding comes in int8 alone, got {text}",
            hint="use embedding=int8, or leave the table as it is",
        )
    return Scheme(text)


def block_of(name: str, width: int) -> int:
    """Return how many elements of a reduction axis of ``width`` share an int4 scale.

    Raises:
        UnsupportedError: neither `BLOCK` nor half of it divides the width.
    """
    for block in (BLOCK, BLOCK // 2):
        if width % block == 0:
            return block
    raise UnsupportedError(
        f"{name}: int4 needs a reduction axis that is a multiple of {BLOCK // 2}, got {width}",
        hint="use int8 for this part, which has one scale for each output channel",
    )


def bytes_of(count: int, scheme: Scheme) -> int:
    """Return the bytes of so many codes; two of int4 share one."""
    return -(-count // 2) if scheme is Scheme.INT4 else count
