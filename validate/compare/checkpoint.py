"""A drafter's checkpoint read anew, and what in a bundle is not what it says now.

A bundle made from a wrong config, or from weights that were damaged on the way, agrees with itself
in every comparison; only the checkpoint tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.spec import DrafterSpec

if TYPE_CHECKING:
    from torch import Tensor

    from draftrt.export.checkpoint.tensors import GraphTensor

SORTABLE = 1 << 26  # values; more are not sorted just to describe a difference
NO_FACTS = ("sources", "warnings", "checkpoint_format", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact or a weight that is another one in the checkpoint.

    Attributes:
        name: of the fact or the weight.
        bundle: what the bundle has.
        checkpoint: what the checkpoint says; for a weight, how the bundle's relates to it.
    """

    name: str
    bundle: str
    checkpoint: str

    def to_json(self) -> dict[str, str]:
        """Return the difference as JSON data."""
        return {"name": self.name, "bundle": self.bundle, "checkpoint": self.checkpoint}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A checkpoint's reading, beside a bundle.

    Attributes:
        spec: its facts.
        tensors: what a graph of it would hold, unread, in the bundle's precision and quantised as
            the bundle's are.
        facts: facts that differ.
        weights: weights that differ.
    """

    spec: DrafterSpec
    tensors: Mapping[str, GraphTensor]
    facts: tuple[Difference, ...]
    weights: tuple[Difference, ...]

    @property
    def is_different(self) -> bool:
        """Whether the bundle was made from something else."""
        return bool(self.facts or self.weights)

    def contents(self) -> dict[str, Tensor]:
        """Return the weights by name in the graph's element types, rotary tables included."""
        return {name: one.read() for name, one in self.tensors.items()}


def read_fresh(bundle: Bundle, draft: Path, target: Path | None) -> Fresh:
    """Read a checkpoint anew and compare facts and weights with a bundle's.

    Args:
        bundle: holds a draft graph.
        draft: drafter checkpoint.
        target: its target's folder; None takes the one the bundle was exported from.

    Raises:
        DraftrtError: checkpoint or target cannot be read, or do not fit.
    """
    from draftrt.export.check.reference import module_from_bundle
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.export.checkpoint.target_files import check_roles
    from draftrt.export.graph.files import requantized
    from draftrt.export.weights.tensors import draft_tensors
    from draftrt.runtime.load import find_target

    spec, entry = bundle.drafter(), bundle.graph("draft")
    check_roles(draft, None)  # by itself: the target may be the bundle's, which nobody named
    # What the config leaves open, or names wrongly, was stated when the bundle was made.
    loaded = load_drafter(
        draft,
        read_target(find_target(bundle, target), draft=draft),
        sample_from_anchor=spec.sample_from_anchor
        if _was_stated(spec, "sample_from_anchor")
        else None,
        family=spec.family if _was_stated(spec, "family") else None,
    )
    tensors = requantized(
        bundle.file(entry.file),
        draft_tensors(loaded.spec, loaded.tensors, entry.precision, entry.max_context),
    )
    facts = fact_differences(spec, loaded.spec)
    held = {
        name: value.detach().float().numpy()
        for name, value in module_from_bundle(bundle).named_parameters()
    }
    return Fresh(
        spec=loaded.spec,
        tensors=tensors,
        facts=facts,
        weights=_weight_differences(
            held,
            tensors,
            has_same_rope=spec.rope == loaded.spec.rope,
        ),
    )


def fact_differences(bundle: DrafterSpec, checkpoint: DrafterSpec) -> tuple[Difference, ...]:
    """Return the facts that two descriptions of a drafter state differently, part by part."""
    found: list[Difference] = []
    for one in fields(DrafterSpec):
        if one.name not in NO_FACTS:
            a, b = getattr(bundle, one.name), getattr(checkpoint, one.name)
            found += _parts(one.name, a, b)
    return tuple(found)


def _parts(name: str, a: Any, b: Any) -> list[Difference]:
    if a == b:
        return []
    if type(a) is type(b) and hasattr(a, "__dataclass_fields__"):
        keys = [one.name for one in fields(a)]
        return [
            d for key in keys for d in _parts(f"{name}.{key}", getattr(a, key), getattr(b, key))
        ]
    is_list = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
    if is_list and a and hasattr(a[0], "__dataclass_fields__"):
        return [d for i in range(len(a)) for d in _parts(f"{name}[{i}]", a[i], b[i])]
    return [Difference(name=name, bundle=_shown(a), checkpoint=_shown(b))]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(getattr(value, "value", value))


def _was_stated(spec: DrafterSpec, fact: str) -> bool:
    return spec.sources[fact].startswith("--")


def _weight_differences(
    held: Mapping[str, NDArray[Any]],
    tensors: Mapping[str, GraphTensor],
    *,
    has_same_rope: bool,
) -> tuple[Difference, ...]:
    """Compare weights one at a time; rotary tables only where the facts behind them agree."""
    found = [
        Difference(name=name, bundle="is there", checkpoint="has none")
        for name in held
        if name not in tensors
    ]
    for name, tensor in tensors.items():
        if name.startswith("rope.") and not has_same_rope:
            continue
        if name not in held:
            found.append(Difference(name=name, bundle="is missing", checkpoint="has it"))
            continue
        want = tensor.read().float().numpy()
        if not np.array_equal(held[name], want):
            found.append(
                Difference(name=name, bundle=relation(held[name], want), checkpoint="as it is")
            )
    return tuple(found)


def relation(got: NDArray[Any], want: NDArray[Any]) -> str:
    """Say in words how an array came about from another one, as far as that can be seen."""
    if got.shape != want.shape:
        is_flipped = got.shape == want.shape[::-1] and np.array_equal(got, want.T)
        return "transposed" if is_flipped else f"shape {list(got.shape)}, not {list(want.shape)}"
    if not np.isfinite(got).all():
        return f"{int((~np.isfinite(got)).sum())} values are not finite"
    if got.ndim == 2 and got.shape[0] == got.shape[1] and np.array_equal(got, want.T):
        return "transposed"
    if got.ndim == 2 and got.size and np.array_equal(_sorted_rows(got), _sorted_rows(want)):
        return "rows in another order"
    if got.ndim == 2 and got.size and np.array_equal(_sorted_rows(got.T), _sorted_rows(want.T)):
        return "columns in another order"
    if got.size <= SORTABLE and np.array_equal(np.sort(got, axis=None), np.sort(want, axis=None)):
        return "the same values in another order"
    scale = factor_of(got, want)
    if scale is not None:
        return f"times {scale:.4g}"
    gap = np.abs(got.astype(np.float64) - want)
    return f"{int((gap > 0).sum()):,} of {gap.size:,} values differ, by up to {gap.max():.3g}"


def factor_of(got: NDArray[Any], want: NDArray[Any]) -> float | None:
    """Return the factor that leads from one array to the other; None where there is none."""
    a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    weight = float(b @ b)
    if not weight or not np.isfinite(a).all():
        return None
    scale = float(a @ b) / weight
    rest = np.abs(a - scale * b).max()
    is_multiple = bool(rest <= 1e-4 * np.abs(a).max()) and abs(scale - 1) > 1e-3
    return scale if is_multiple else None


def _sorted_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Return the rows in an order that depends on their content alone."""
    return array[np.lexsort(array.T[:8])]
