"""A drafter's folder and its target to one checked description with unread tensors.

Everything that can be wrong is found here, before any graph is traced, and told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftrt.dtypes import FLOATS
from draftrt.errors import CheckpointError, DraftrtError, SpecError, UnsupportedError, collect
from draftrt.export.borrowed import read_borrowed
from draftrt.export.checkpoint_folder import open_checkpoint
from draftrt.export.config import ConfigFacts, read_config
from draftrt.export.facts import Facts
from draftrt.export.shapes import tensor_shapes
from draftrt.export.target import EMBED, HEAD, Target
from draftrt.export.tensor_names import Canonical, canonicalise, cut_fused
from draftrt.export.tensor_ref import TensorRef
from draftrt.export.vocabulary import read_vocabulary
from draftrt.spec import DrafterSpec, Family, TableSource, VocabMap


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A checked drafter.

    Attributes:
        spec: its facts.
        tensors: canonical name to unread tensor, borrowed tables included.
        original_names: canonical name to the name in its own checkpoint.
        ignored: checkpoint tensors left out on purpose, with the reason.
        folder: its checkpoint.
        target: the target it was checked against; None when there was none.
    """

    spec: DrafterSpec
    tensors: Mapping[str, TensorRef]
    original_names: Mapping[str, str]
    ignored: Mapping[str, str]
    folder: Path
    target: Target | None


def load_drafter(
    folder: Path,
    target: Target | None,
    *,
    sample_from_anchor: bool | None = None,
    ignore_keys: frozenset[str] = frozenset(),
) -> LoadedDrafter:
    """Read, resolve and check a drafter.

    Args:
        folder: drafter checkpoint with config.json and safetensors.
        target: the target it is to draft for; None to look at the drafter alone.
        sample_from_anchor: the user's statement where the config leaves alignment open.
        ignore_keys: unknown config keys the user declares to be without effect.

    Raises:
        DraftrtError: every contradiction, missing or unclaimed tensor and refusal found.
    """
    facts, refs, findings = open_checkpoint(folder)
    if (folder / "mask_embedding.pt").exists():
        findings.append(
            UnsupportedError(
                f"{folder / 'mask_embedding.pt'}: pickled weights are never loaded",
                hint="convert it to a safetensors tensor mask_embedding beside the other weights",
            )
        )
    names = canonicalise(refs)
    shapes = {name: ref.shape for name, ref in names.tensors.items()}
    fusion = names.tensors.get("fc.weight")
    config = read_config(
        facts,
        shapes,
        stored_dtype=fusion.dtype if fusion and fusion.dtype in FLOATS else "bfloat16",
        sample_from_anchor=sample_from_anchor,
        ignore_keys=ignore_keys,
    )
    spec = _assemble(facts, config, names, target) if facts.is_whole else None
    findings += [*facts.findings]
    if target is not None and spec is not None:
        findings += _check_target(spec, target)
    tensors: dict[str, TensorRef] = {}
    if spec is not None and refs:
        tensors = _check_tensors(spec, names, target, folder)
    collect([*findings, *names.findings])
    assert spec is not None
    return LoadedDrafter(spec, tensors, names.original, names.ignored, folder, target)


def _assemble(
    facts: Facts, config: ConfigFacts, names: Canonical, target: Target | None
) -> DrafterSpec:
    fields: dict[str, Any] = dict(config.fields)
    fields |= read_vocabulary(facts, config, names.tensors, target)
    fields |= read_borrowed(facts, config, target, fields)
    used = {
        key: facts.sources.get(key, "")
        for key in DrafterSpec.__dataclass_fields__
        if key not in ("sources", "warnings")
    }
    return DrafterSpec(**fields, sources=used, warnings=tuple(facts.warnings))


def _check_target(spec: DrafterSpec, target: Target) -> list[DraftrtError]:
    """Depth, width and declared depth against the target (vLLM 48113: four of five features)."""
    t, findings = target.spec, list[DraftrtError]()
    beyond = [k for k in spec.target_layer_ids if k >= t.num_layers]
    if beyond:
        findings.append(
            SpecError(
                f"target_layer_ids {list(spec.target_layer_ids)}: got layers {beyond}, expected at "
                f"most {t.num_layers - 1} (the target has {t.num_layers} layers)",
                hint="this drafter was trained for another target",
            )
        )
    if spec.num_target_layers is not None and spec.num_target_layers != t.num_layers:
        findings.append(
            SpecError(
                f"num_target_layers: got {spec.num_target_layers}, expected {t.num_layers} as in "
                "the target",
                hint="this drafter was trained for another target",
            )
        )
    if spec.target_hidden_size != t.hidden_size:
        findings.append(
            SpecError(
                f"target hidden size: the drafter expects {spec.target_hidden_size}, the target "
                f"has {t.hidden_size}",
                hint="this drafter was trained for another target",
            )
        )
    return findings


def _check_tensors(
    spec: DrafterSpec, names: Canonical, target: Target | None, folder: Path
) -> dict[str, TensorRef]:
    """Claim every tensor the spec asks for; missing, left over or ill-shaped is a finding."""
    wanted = tensor_shapes(spec)
    cut_fused(names, {name: shape[0] for name, shape in wanted.items()})
    tables = {} if target is None else dict(target.tables)
    _tie(spec, names)
    borrowed = {
        name
        for name, source in ((EMBED, spec.embed_source), (HEAD, spec.head_source))
        if source.value == "target"
    }
    claimed: dict[str, TensorRef] = {}
    missing = []
    for name, shape in wanted.items():
        ref = tables.get(name) if name in borrowed else names.tensors.get(name)
        if ref is None and name in borrowed and target is None:
            continue
        if ref is None:
            missing.append(f"{name} {list(shape)}")
            continue
        if name == HEAD and name in borrowed and ref.shape[0] > shape[0]:
            ref = ref.rows(0, shape[0])
        claimed[name] = _checked(ref, name, shape, names)
    left_out = _left_out(spec)
    names.ignored |= {
        names.original[name]: why for name, why in left_out.items() if name in names.tensors
    }
    unclaimed = sorted(set(names.tensors) - set(wanted) - set(left_out))
    if missing:
        names.findings.append(
            CheckpointError(
                f"{folder}: tensors missing: {_some(missing)}",
                hint="the checkpoint is incomplete, or its config describes another model",
            )
        )
    if unclaimed:
        left = [f"{names.original[name]} {list(names.tensors[name].shape)}" for name in unclaimed]
        names.findings.append(
            CheckpointError(
                f"{folder}: tensors nothing asks for: {_some(left)}",
                hint="they would change the answer in the publisher's code; the config "
                "does not describe them",
            )
        )
    return claimed


def _tie(spec: DrafterSpec, names: Canonical) -> None:
    """Let a head that is the drafter's own embedding be found under its name."""
    if spec.head_source is TableSource.DRAFT and HEAD not in names.tensors:
        names.tensors[HEAD] = names.tensors[EMBED]
        names.original[HEAD] = names.original[EMBED]


def _checked(ref: TensorRef, name: str, shape: tuple[int, ...], names: Canonical) -> TensorRef:
    fits = len(ref.shape) == len(shape) and all(
        want in (-1, have) for want, have in zip(shape, ref.shape, strict=True)
    )
    if not fits:
        cause = ""
        if name == "fc.weight":
            cause = (
                "columns of fc are taps x target hidden size: taps, target_hidden_size and the "
                "tensor disagree"
            )
        names.findings.append(
            CheckpointError(
                f"tensor {ref.name!r}: got shape {list(ref.shape)}, expected {list(shape)}".replace(
                    "-1", "any"
                ),
                hint=cause,
            )
        )
    integer = name == "d2t"
    if (ref.dtype not in ("int64", "int32")) if integer else (ref.dtype not in FLOATS):
        names.findings.append(
            CheckpointError(
                f"tensor {ref.name!r}: got {ref.dtype}, expected "
                f"{'int64' if integer else 'a 16- or 32-bit float'}"
            )
        )
    return ref


def _left_out(spec: DrafterSpec) -> dict[str, str]:
    """Tensors under a canonical name that an answer does not need, with the reason."""
    reasons = {"t2d": "says what d2t says"}
    if spec.vocab_map is VocabMap.IDENTITY:
        reasons["d2t"] = "maps every id to itself"
    if spec.family is Family.DSPARK:
        reasons["mask_embedding"] = "a placeholder in DSpark checkpoints"
    return reasons


def _some(items: list[str], limit: int = 8) -> str:
    return ", ".join(items[:limit]) + (
        f" and {len(items) - limit} more" if len(items) > limit else ""
    )
