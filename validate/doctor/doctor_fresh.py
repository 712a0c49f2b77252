"""Suspects that a checkpoint, read anew, names itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from draftrt.spec import DrafterSpec
from draftrt.validate.compare.checkpoint import Fresh
from draftrt.validate.doctor.suspects import Suspect


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
