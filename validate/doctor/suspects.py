"""The usual suspects: facts of a drafter that leave the text right and take the acceptance.

Each is the drafter with one fact changed, to be replayed over recorded rounds. Knows descriptions
of drafters, no tensors and no texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftrt.bundle import Bundle
from draftrt.codec import read_object
from draftrt.errors import BundleError
from draftrt.export.checkpoint.safetensors import read_config
from draftrt.spec import DrafterSpec, RopeLayout, VocabMap, WindowEdge
from draftrt.validate.compare.checkpoint import Fresh
from draftrt.validate.doctor.recording import Text

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


MAX_TOKENS = 40
WINDOW_KEYS = ("dflash_config.swa_window_size", "sliding_window")


def setting_of(
    bundle: Bundle,
    texts: Sequence[Text],
    draft: Path | None,
    target: Path | None,
    has_d2t: bool,
) -> Setting:
    """Return what the suspects of a bundle's drafter can be taken from.

    Args:
        bundle: holds tokenizer and target facts.
        texts: the recorded ones.
        draft: the drafter's checkpoint, if it is at hand.
        target: the target's folder, if it is at hand.
        has_d2t: whether the draft graph holds a vocabulary map.

    Raises:
        BundleError: the tokenizer's file cannot be read.
    """
    decoder = bundle.manifest.decoder
    configs = [
        (folder, name) for folder, name in ((draft, "drafter"), (target, "target")) if folder
    ]
    windows: dict[int, str] = {}
    for folder, name in configs:
        for size in _windows(read_config(folder)):
            windows.setdefault(size, f"sliding_window of the {name}'s config")
    theta = None if decoder is None else decoder.rope.theta
    if theta is None and target is not None:
        theta = _theta_of(read_config(target))
    return Setting(
        num_layers=bundle.manifest.target.num_layers,
        longest=max(len(text.ids) for text in texts),
        tokens=special_tokens(bundle.file("tokenizer") / "tokenizer.json"),
        theta=theta,
        windows=windows,
        has_d2t=has_d2t,
    )


def special_tokens(path: Path) -> dict[int, str]:
    """Return the special tokens of a tokenizer, id to text, and the first id behind all of them.

    A mask token is one of these, as a rule: publishers take a special token, or the first row of
    the embedding table that no token uses.

    Raises:
        BundleError: the file is no tokenizer.
    """
    try:
        content = read_object(path, BundleError)
        added = {int(one["id"]): str(one["content"]) for one in content["added_tokens"]}
        ids = content["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: cannot be read as a tokenizer: {error!s:.200}") from error
    numbers = range(len(ids)) if isinstance(ids, list) else ids.values()
    behind = max([*added, *numbers], default=-1) + 1
    last = sorted(added)[-MAX_TOKENS:]
    return {token: added[token] for token in last} | {behind: "first id no token uses"}


def _windows(config: dict[str, Any]) -> Iterator[int]:
    for scope in _scopes(config):
        for key in WINDOW_KEYS:
            value: Any = scope
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield value


def _theta_of(config: dict[str, Any]) -> float | None:
    for scope in _scopes(config):
        rope = scope.get("rope_parameters")
        for table in (scope, rope if isinstance(rope, dict) else {}):
            value = table.get("rope_theta")
            if isinstance(value, (int, float)) and value > 0:
                return float(value)
    return None


def _scopes(config: dict[str, Any]) -> list[dict[str, Any]]:
    nested = [config.get(key) for key in ("text_config", "transformer_layer_config")]
    return [config, *(one for one in nested if isinstance(one, dict))]


def fresh_suspects(spec: DrafterSpec, fresh: Fresh) -> list[Suspect]:
    """Return the bundle's drafter with each fact of the checkpoint, then the checkpoint as a whole.

    A fact that changes the shape of a weight cannot be tried alone; nor is it, where it is the
    only one that differs.
    """
    from draftrt.export.models.shapes import tensor_shapes

    if not fresh.is_different:
        return []
    names = dict.fromkeys(one.name.split(".")[0].split("[")[0] for one in fresh.facts)
    found = []
    for name, made in _single(spec, fresh.spec, list(names)):
        if tensor_shapes(made) == tensor_shapes(spec):
            changed = [one for one in fresh.facts if one.name.startswith(name)]
            change = ", ".join(
                f"{one.name} {one.checkpoint} instead of {one.bundle}" for one in changed
            )
            fact = changed[0].name if len(changed) == 1 else name
            found.append(Suspect(fact=fact, change=f"{change} (the checkpoint's)", spec=made))
    if len(names) != 1 or fresh.weights or not found:
        parts = [*names, *(one.name for one in fresh.weights)]
        change = f"{', '.join(parts[:6])}{' ...' if len(parts) > 6 else ''} as in the checkpoint"
        found.append(Suspect(fact="checkpoint", change=change, spec=fresh.spec, is_fresh=True))
    return found


def _single(
    spec: DrafterSpec, fresh: DrafterSpec, names: list[str]
) -> Iterator[tuple[str, DrafterSpec]]:
    for name in names:
        changed: dict[str, Any] = {name: getattr(fresh, name)}
        yield name, replace(spec, **changed)
