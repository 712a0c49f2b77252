"""What a difference at a place is: what the graph's value turned out to be, and what that means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.graph.edit import attributes_of
from draftrt.export.tracing.names import MASK
from draftrt.spec import DrafterSpec
from draftrt.validate.bisect.gaps import Gap
from draftrt.validate.bisect.module import CACHES, INTO, QUERIES, RecordedPlace
from draftrt.validate.bisect.rounds import ReferenceRound
from draftrt.validate.compare.checkpoint import factor_of

if TYPE_CHECKING:
    from draftrt.export.graph.differences import NodeDifference

FLOAT16 = 10  # onnx.TensorProto.FLOAT16
MOVES = ("Transpose", "Reshape", "Cast", "Unsqueeze", "Squeeze", "Expand", "Identity", "Flatten")
CARRIES = (*MOVES, "Slice", "Concat", "Tile", "Shape", "Gather", "Range")
USUAL = (
    ("self_attn.keys", "RoPE layout, theta or positions of the keys, or the row they are written "
     "to"),
    ("self_attn.values", "the value projection, or the row it is written to"),
    ("self_attn.query", "RoPE layout (neox or interleaved), theta or positions of the block"),
    ("self_attn.attention", "attention: scale, grouping of the heads, sinks, or its mask"),
    ("mask", "sliding window, its edge, causality, or the number of valid rows"),
    ("valid", "the number of valid rows"),
    ("choice", "two scores nearly equal, or logits that differ"),
    ("rope.", "theta, scaling rule or positions"),
    ("fc", "taps in another order, other layers, or a damaged fusion weight; in 16 bits, "
     "features above 65504"),
    ("hidden_norm", "a missing norm, another epsilon, or normed features"),
    ("embed_tokens", "the mask token id, another embedding table, or the anchor"),
    ("q_norm", "norms of queries and keys exchanged, one left out, another epsilon or weight, or "
     "heads in another order"),
    ("k_norm", "norms of queries and keys exchanged, one left out, another epsilon or weight, or "
     "heads in another order"),
    ("q_proj", "the query projection: another layer's, or heads in another order"),
    ("self_attn.o_proj", "attention: scale, grouping of the heads, sinks, or its mask"),
    ("post_attention_layernorm", "the attention's residual: a lost addition, or 16-bit overflow"),
    ("input_layernorm", "the residual behind the layer before: a lost addition, embedding scale, "
     "or 16-bit overflow"),
    ("mlp.", "activation, gate and up projection exchanged, or 16-bit overflow"),
    ("norm", "epsilon or weight of a norm"),
    ("lm_head", "another LM head, padded rows, multiplier or soft cap"),
    ("markov_head", "the token that conditions a draft: taken one draft off, or not mapped by d2t"),
    ("candidate_selector", "candidates in another order, or the codebooks exchanged"),
    ("confidence", "the confidence head's weights or input"),
    ("d2t", "the vocabulary map"),
    ("draft_ids", "the vocabulary map d2t: direction, offset, or left out"),
)  # fmt: skip
MISSING, READS = "is missing", "reads "  # of a node that is not as the facts give it


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about a difference.

    Attributes:
        place: where it is seen first.
        gap: the two arrays.
        round: what the reference computed in the round that shows it most.
        spec: the reference's drafter.
        nodes: nodes of the graph between the last values that agree and this one.
        readers: nodes that it goes into with the place's weight.
        upstream: every node that the value depends on.
        lost: weights that the reference uses up to there and the graph does not.
        edits: nodes of the graph that are not as the facts give them.
    """

    place: RecordedPlace
    gap: Gap
    round: ReferenceRound
    spec: DrafterSpec
    nodes: Sequence[Any]
    readers: Sequence[Any]
    upstream: Sequence[Any]
    lost: tuple[str, ...]
    edits: Sequence[NodeDifference] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An explanation.

    Attributes:
        node: name of the node that most likely makes the difference; empty for an input.
        op: its operator.
        sentences: what the graph's value turned out to be.
        usual: what a difference at such a place usually means.
    """

    node: str
    op: str
    sentences: tuple[str, ...]
    usual: str


def explain(seen: Evidence) -> Told:
    """Say what is known about a difference, most certain first."""
    sentences = [
        *_lost(seen),
        *_edited(seen),
        *_overflow(seen),
        *_elsewhere(seen),
        *_mask(seen),
        *_rotation(seen),
        *_blocks(seen),
        *_factor(seen),
    ]
    label = seen.lost[-1] if seen.lost else seen.place.path
    usual = next((text for key, text in USUAL if key in label), "an operator or weight before it")
    node, op = _culprit(seen)
    return Told(node=node, op=op, sentences=tuple(dict.fromkeys(sentences)), usual=usual)


def _culprit(seen: Evidence) -> tuple[str, str]:
    """Return name and operator of the node to look at.

    One that squeezes what overflows, one that is not as the facts give it, else the last that
    computes.
    """
    edits = _edits(seen)
    named = {one.node for one in edits}
    narrow = [node for node in seen.nodes if _narrows(node)]
    if narrow and seen.gap.got.dtype.kind == "f" and not np.isfinite(seen.gap.got).all():
        known = [node for node in narrow if node.name in named] or narrow * (not edits)
        if known:
            return known[-1].name, known[-1].op_type
    if edits:
        first = min(edits, key=lambda one: (one.what.startswith(READS), one.what == MISSING))
        return first.node, first.op
    computing = [node for node in seen.nodes if node.op_type not in CARRIES]
    last = (computing or [*seen.nodes])[-1:]
    return (last[0].name, last[0].op_type) if last else ("", "")


def _edits(seen: Evidence) -> list[NodeDifference]:
    """Return the edits that make the difference: those here, and what is missing; else before."""
    here = {node.name for node in (*seen.nodes, *seen.readers)}
    before = {node.name for node in seen.upstream}
    found = [one for one in seen.edits if one.node in here]
    found = found or [one for one in seen.edits if one.node in before][-1:]
    return found + [one for one in seen.edits if found and one.what == MISSING]


def _narrows(node: Any) -> bool:
    return node.op_type == "Cast" and attributes_of(node).get("to") == FLOAT16


def _lost(seen: Evidence) -> Iterator[str]:
    for name in dict.fromkeys(seen.lost):
        yield f"no node of the graph uses {name}, which the reference does before this place"


def _edited(seen: Evidence) -> Iterator[str]:
    for one in _edits(seen):
        yield f"{one.op} {one.node} {one.what}"


def _overflow(seen: Evidence) -> Iterator[str]:
    got, want = seen.gap.got, seen.gap.want
    if got.dtype.kind != "f" or np.isfinite(got).all() or not np.isfinite(want).all():
        return
    largest = float(np.abs(want).max(initial=0.0))
    narrow = [node.name for node in seen.nodes if _narrows(node)]
    through = f", through {', '.join(narrow)} to float16" if narrow else ""
    yield (
        f"{int((~np.isfinite(got)).sum())} of {got.size} values are not finite where the reference "
        f"reaches {largest:.3g}{through}: overflow (float16 ends at 65504)"
    )


def _elsewhere(seen: Evidence) -> Iterator[str]:
    """Find the graph's value at another place of the reference: things exchanged or one off."""
    got = seen.gap.got
    if got.size < 2 and got.dtype.kind == "f":
        return
    want = seen.gap.want
    for place, value in seen.round.values.items():
        if place == seen.place or value.size != got.size or value.dtype.kind != got.dtype.kind:
            continue
        is_expected = want.size == got.size and _equal(value.reshape(want.shape), want)
        if not is_expected and _equal(value.reshape(got.shape), got):
            yield f"the graph's value is what the reference has {_told(place)}"
            return


def _told(place: RecordedPlace) -> str:
    return f"at {place}"


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.dtype.kind != "f":
        return bool((a == b).all())
    scale = float(np.abs(a).max(initial=0.0))
    return scale > 0 and bool(np.allclose(a, b, rtol=0, atol=1e-4 * scale))


def _mask(seen: Evidence) -> Iterator[str]:
    got, want = (side.reshape(-1, side.shape[-1]) for side in (seen.gap.got, seen.gap.want))
    if seen.place.path != MASK or got.shape != want.shape or not got.any():
        return
    ends = [(row.argmax(), len(row) - 1 - row[::-1].argmax()) for row in got]
    expected = [(row.argmax(), len(row) - 1 - row[::-1].argmax()) for row in want]
    for index, (have, wish) in enumerate(zip(ends, expected, strict=True)):
        if have != wish:
            yield (
                f"query {index} of the block sees rows {have[0]} to {have[1]}, expected {wish[0]} "
                f"to {wish[1]}: {_off(have[0] - wish[0], 'first')}{_off(have[1] - wish[1], 'last')}"
            ).rstrip(", ")
            return


def _off(by: int, which: str) -> str:
    return f"{which} {abs(by)} {'later' if by > 0 else 'earlier'}, " if by else ""


def _rotation(seen: Evidence) -> Iterator[str]:
    """Rotate the reference's normed rows in other ways and look whether one is the graph's."""
    keys = CACHES[0]
    if seen.place.step not in (QUERIES, keys) or seen.gap.got.shape != seen.gap.want.shape:
        return
    values, layer = seen.round.values, seen.place.layer
    norm = "q_norm" if seen.place.step == QUERIES else "k_norm"
    rows = values.get(RecordedPlace(f"layers.{layer}.self_attn.{norm}"))
    cos, sin = (values.get(RecordedPlace(f"rope.{name}.rows")) for name in ("cos", "sin"))
    if rows is None or cos is None or sin is None:
        return
    x = rows[0].transpose(1, 0, 2)  # [heads, R, D]
    got = seen.gap.got.reshape(-1, seen.gap.got.shape[-2], x.shape[2])
    got = got[:, -x.shape[1] :] if seen.place.step == keys else got.reshape(x.shape)
    is_interleaved = seen.spec.rope.layout.value == "interleaved"
    names = {False: "neox: (i, i + d/2)", True: "interleaved: (2i, 2i + 1)"}
    for shift in (0, -1, 1):
        for way in (is_interleaved, not is_interleaved):
            angles = [np.roll(table, -shift, axis=0)[-x.shape[1] :] for table in (cos, sin)]
            inner = slice(1, -1) if shift else slice(None)  # a rolled end has no meaning
            turned = rotated(x, angles[0], angles[1], is_interleaved=way)
            if _equal(turned[:, inner], got[:, inner]):
                moved = f", positions off by {shift}" if shift else ""
                wanted = names[is_interleaved]
                yield f"these rows are rotated as {names[way]}{moved}, expected {wanted}"
                return
    if _equal(x, got):
        yield "these rows are not rotated at all"


def rotated(
    x: NDArray[Any], cos: NDArray[Any], sin: NDArray[Any], *, is_interleaved: bool
) -> NDArray[Any]:
    """Rotate the pairs of each row.

    Args:
        x: [heads, R, D].
        cos: [R, rotary_dim / 2].
        sin: as ``cos``.
        is_interleaved: pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
    """
    half = cos.shape[-1]
    out: NDArray[Any] = x.copy()
    first = slice(0, 2 * half, 2) if is_interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if is_interleaved else slice(half, 2 * half)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def _blocks(seen: Evidence) -> Iterator[str]:
    """Find features whose taps were concatenated in another order."""
    got, want, taps = seen.gap.got, seen.gap.want, len(seen.spec.target_layer_ids)
    if seen.place != RecordedPlace("fc", 0, INTO) or got.shape != want.shape or taps < 2:
        return
    have, wish = np.split(got, taps, axis=1), np.split(want, taps, axis=1)
    order = [next((j for j, b in enumerate(wish) if _equal(b, a)), -1) for a in have]
    if -1 not in order and order != list(range(taps)):
        wanted = list(seen.spec.target_layer_ids)
        got_ids = [wanted[place] for place in order]
        yield f"taps are concatenated in the order {got_ids}, expected {wanted}"


def _factor(seen: Evidence) -> Iterator[str]:
    got, want = seen.gap.got, seen.gap.want
    if got.dtype.kind != "f" or got.shape != want.shape or got.size < 2:
        return
    scale = factor_of(got, want)
    if scale is not None:
        yield f"the graph's value is {scale:.4g} times the reference's"
