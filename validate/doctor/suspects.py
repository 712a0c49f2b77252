"""The usual suspects: facts of a drafter that leave the text right and take the acceptance.

Each is the drafter with one fact changed, to be replayed over recorded rounds. Knows descriptions
of drafters, no tensors and no texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from draftrt.spec import DrafterSpec, RopeLayout, VocabMap, WindowEdge

THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 8e6, 1e7)  # of published targets and drafters
WINDOWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A drafter with one fact changed.

    Attributes:
        fact: name of the fact, as `draftrt inspect` shows it where it is one of the checkpoint's.
        change: what it becomes and what it is now.
        spec: the changed drafter.
        normed: the taps whose features go through the target's final norm first.
        shift: positions by which the block is moved against the context.
        is_fresh: whether the weights come from the checkpoint, not from the bundle.
    """

    fact: str
    change: str
    spec: DrafterSpec
    normed: frozenset[int] = frozenset()
    shift: int = 0
    is_fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the suspects of a drafter can be taken from.

    Attributes:
        num_layers: decoder layers of the target.
        longest: positions of the longest recorded text.
        tokens: special tokens, id to a name for people.
        theta: the target's own base of the rotary frequencies, where it is known.
        windows: windows that some config mentions, size to where.
        has_d2t: whether the draft vocabulary has a map.
    """

    num_layers: int
    longest: int
    tokens: Mapping[int, str] = field(default_factory=dict)
    theta: float | None = None
    windows: Mapping[int, str] = field(default_factory=dict)
    has_d2t: bool = False


def suspects_of(spec: DrafterSpec, setting: Setting) -> list[Suspect]:
    """Return every change worth a try, each that leads to another drafter once."""
    found: list[Suspect] = []
    for name in _KINDS:
        for one in name(spec, setting):
            same = [two for two in found if _key(two) == _key(one)]
            if not same and (one.spec != spec or one.normed or one.shift):
                found.append(one)
    return found


def _key(one: Suspect) -> tuple[DrafterSpec, frozenset[int], int]:
    return one.spec, one.normed, one.shift


def _taps(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    """Every tap one layer off, all of them one layer off, and the other way round."""
    ids = spec.target_layer_ids

    def at(taps: tuple[int, ...], how: str) -> Iterator[Suspect]:
        if all(-1 <= k < setting.num_layers for k in taps):
            change = f"{list(taps)} instead of {list(ids)} ({how})"
            made = replace(spec, target_layer_ids=taps)
            yield Suspect(fact="target_layer_ids", change=change, spec=made)

    for step, way in ((-1, "down"), (1, "up")):
        yield from at(tuple(k + step for k in ids), f"every tap one layer {way}")
    for index in range(len(ids) if len(ids) > 1 else 0):
        for step, way in ((-1, "down"), (1, "up")):
            moved = (*ids[:index], ids[index] + step, *ids[index + 1 :])
            yield from at(moved, f"tap {index} one layer {way}")
    if len(ids) > 1:
        yield from at(ids[::-1], "features concatenated in the opposite order")


def _normed(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    """Features behind the target's final norm, as Hugging Face's last hidden state is."""
    last, all_taps = len(spec.target_layer_ids) - 1, range(len(spec.target_layer_ids))
    for taps, which in ((frozenset({last}), "last tap"), (frozenset(all_taps), "taps")):
        change = f"{which} through the target's final norm instead of raw"
        yield Suspect(fact="features", change=change, spec=spec, normed=taps)


def _layout(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    other = (
        RopeLayout.NEOX if spec.rope.layout is RopeLayout.INTERLEAVED else RopeLayout.INTERLEAVED
    )
    change = f"{other.value} instead of {spec.rope.layout.value}"
    yield Suspect(
        fact="rope.layout", change=change, spec=replace(spec, rope=replace(spec.rope, layout=other))
    )


def _theta(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    now = spec.rope.theta
    target = () if setting.theta is None else (setting.theta,)
    for theta in dict.fromkeys((*target, *THETAS)):
        note = " (the target's)" if theta == setting.theta else ""
        change = f"{theta:g}{note} instead of {now:g}"
        yield Suspect(
            fact="rope.theta",
            change=change,
            spec=replace(spec, rope=replace(spec.rope, theta=theta)),
        )
    if spec.rope.type not in ("default", "proportional"):
        plain = replace(spec.rope, type="default")
        change = f"default instead of {spec.rope.type} (positions not scaled)"
        yield Suspect(fact="rope.type", change=change, spec=replace(spec, rope=plain))


def _window(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    """Full for sliding, sliding for full, and a window one off or counted from elsewhere."""
    windows = {layer.window for layer in spec.layers if layer.window is not None}
    shown = "/".join(map(str, sorted(windows)))

    def with_layers(change: str, **fields: object) -> Suspect:
        layers = tuple(
            replace(one, **fields) if one.window is not None or not windows else one  # type: ignore[arg-type]
            for one in spec.layers
        )
        return Suspect(fact="window", change=change, spec=replace(spec, layers=layers))

    if not windows:
        sizes = dict.fromkeys(WINDOWS, "") | dict(setting.windows)
        for size, place in sorted(sizes.items()):
            if size < setting.longest:
                yield with_layers(
                    f"{size}{f' ({place})' if place else ''} instead of full attention", window=size
                )
        return
    yield with_layers(f"full attention instead of {shown}", window=None)
    for size in sorted(windows):
        for step in (-1, 1):
            if size + step > 0:
                yield with_layers(f"{size + step} instead of {size}", window=size + step)
    for size, place in sorted(setting.windows.items()):
        yield with_layers(f"{size} ({place}) instead of {shown}", window=size)
    edge = spec.layers[0].window_edge
    other = WindowEdge.ANCHOR if edge is WindowEdge.QUERY else WindowEdge.QUERY
    yield with_layers(
        f"counted from the {other.value} instead of the {edge.value}", window_edge=other
    )


def _causality(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    for is_causal in (True, False):
        layers = tuple(replace(one, is_causal=is_causal) for one in spec.layers)
        what = "rows up to themselves" if is_causal else "the whole block"
        change = f"every layer sees {what}"
        yield Suspect(fact="is_causal", change=change, spec=replace(spec, layers=layers))


def _alignment(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    other = not spec.sample_from_anchor
    rows = "row 0 drafts too" if other else "row 0 drafts nothing"
    change = f"{str(other).lower()} instead of {str(spec.sample_from_anchor).lower()} ({rows})"
    yield Suspect(
        fact="sample_from_anchor", change=change, spec=replace(spec, sample_from_anchor=other)
    )


def _position(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    for step in (-1, 1):
        change = f"block one position {'earlier' if step < 0 else 'later'} against the context"
        yield Suspect(fact="position", change=change, spec=spec, shift=step)


def _mask_token(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    if spec.mask_embedding:  # the id only says where the vector goes
        return
    for token, name in sorted(setting.tokens.items()):
        if 0 <= token < spec.input_vocab_size:
            change = f"{token} ({name}) instead of {spec.mask_token_id}"
            made = replace(spec, mask_token_id=token)
            yield Suspect(fact="mask_token_id", change=change, spec=made)


def _embedding_scale(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    root = math.sqrt(spec.hidden_size)
    for scale, name in ((1.0, "1"), (root, "sqrt(hidden_size)"), (1 / root, "1/sqrt(hidden_size)")):
        if not math.isclose(scale, spec.embedding_scale, rel_tol=0.02):
            change = f"{name} instead of {spec.embedding_scale:g}"
            yield Suspect(
                fact="embedding_scale", change=change, spec=replace(spec, embedding_scale=scale)
            )


def _vocabulary(spec: DrafterSpec, setting: Setting) -> Iterator[Suspect]:
    meaning = {
        VocabMap.IDENTITY: "draft ids are target ids",
        VocabMap.OFFSET: "target id = id + d2t[id]",
        VocabMap.ABSOLUTE: "target id = d2t[id]",
    }
    for other in VocabMap if setting.has_d2t else ():
        change = f"{other.value} instead of {spec.vocab_map.value} ({meaning[other]})"
        yield Suspect(fact="vocab_map", change=change, spec=replace(spec, vocab_map=other))


_KINDS: tuple[Callable[[DrafterSpec, Setting], Iterator[Suspect]], ...] = (
    _taps,
    _normed,
    _layout,
    _theta,
    _window,
    _causality,
    _alignment,
    _position,
    _mask_token,
    _embedding_scale,
    _vocabulary,
)
