"""Every tensor that a drafter's description asks for, claimed from its checkpoint or its target.

What is missing, left over or ill-shaped is a finding; tensors that are wrong for one reason are
told in one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftrt.dtypes import FLOATS
from draftrt.errors import CheckpointError
from draftrt.export.checkpoint.names import Canonical, cut_fused
from draftrt.export.checkpoint.quantized.read import DecodedTensors
from draftrt.export.checkpoint.quantized.settings import KEYS, SCOPES
from draftrt.export.checkpoint.target import EMBED, HEAD, TargetCheckpoint
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.reader import Facts
from draftrt.export.models.shapes import Shapes, tensor_shapes
from draftrt.spec import DrafterSpec, Family, TableSource, VocabMap

Shape = tuple[int, ...]
FUSION = (
    "columns of fc are taps x target hidden size: taps, target_hidden_size and the tensor disagree"
)
# a size of the config, and the tensor whose rows it is; heads: rows over head_dim
SIZES = (
    ("hidden_size", "norm.weight"),
    ("head_dim", "layers.0.self_attn.q_norm.weight"),
    ("intermediate_size", "layers.0.mlp.gate_proj.weight"),
    ("num_heads", "layers.0.self_attn.q_proj.weight"),
    ("num_kv_heads", "layers.0.self_attn.k_proj.weight"),
)


def claim(
    spec: DrafterSpec, names: Canonical, target: TargetCheckpoint | None, folder: Path
) -> dict[str, TensorRef]:
    """Return every tensor that the spec asks for, by canonical name; findings go to ``names``."""
    wanted = tensor_shapes(spec)
    uncut = cut_fused(names, {name: shape[0] for name, shape in wanted.items()})
    tables = {} if target is None else dict(target.tables)
    _tie(spec, names)
    borrowed = {
        name
        for name, source in ((EMBED, spec.embed_source), (HEAD, spec.head_source))
        if source is TableSource.TARGET
    }
    claimed: dict[str, TensorRef] = {}
    missing = []
    for name, shape in wanted.items():
        ref = tables.get(name) if name in borrowed else names.tensors.get(name)
        if ref is None and name in borrowed and target is None:
            continue
        if ref is None:
            missing += [] if name in uncut else [f"{name} {list(shape)}"]
            continue
        if name == HEAD and name in borrowed and ref.shape[0] > shape[0]:
            ref = ref.rows(0, shape[0])
        claimed[name] = ref
    # The reader of vocabularies has looked at d2t and the rows of an own head, and a target of
    # another width is told as such.
    checked = {name: ref for name, ref in claimed.items() if name not in {"d2t", *borrowed}}
    if target is not None and target.spec.hidden_size == spec.target_hidden_size:
        checked |= {name: claimed[name] for name in borrowed & set(claimed)}
    _check_shapes(spec, checked, names)
    _check_types(checked, names)
    _check_extent(spec, wanted, missing, names, folder)
    return claimed


def _tie(spec: DrafterSpec, names: Canonical) -> None:
    """Let a head that is the drafter's own embedding be found under its name."""
    if spec.head_source is TableSource.DRAFT and HEAD not in names.tensors:
        names.tensors[HEAD] = names.tensors[EMBED]
        names.original[HEAD] = names.original[EMBED]


def _wanted(spec: DrafterSpec) -> Shapes:
    shapes = tensor_shapes(spec)
    return {**shapes, HEAD: (-1, shapes[HEAD][1])}


def _misfits(spec: DrafterSpec, refs: Mapping[str, TensorRef]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of another shape than the spec gives them, with that shape."""
    return {
        name: shape
        for name, shape in _wanted(spec).items()
        if name in refs
        and not (
            len(refs[name].shape) == len(shape)
            and all(w in (-1, h) for w, h in zip(shape, refs[name].shape, strict=True))
        )
    }


def _check_shapes(spec: DrafterSpec, refs: Mapping[str, TensorRef], names: Canonical) -> None:
    """One finding for each size that explains several shapes, then one for each kind of tensor."""
    for fact, name in SIZES:
        before, ref = _misfits(spec, refs), refs.get(name)
        if ref is None or not ref.shape or not before:
            continue
        size, rest = divmod(ref.shape[0], spec.head_dim if fact.startswith("num_") else 1)
        if rest or size in (0, getattr(spec, fact)):
            continue
        changes: dict[str, Any] = {fact: size}
        other = dataclasses.replace(spec, **changes)
        explained = len(before) - len(_misfits(other, refs))
        if explained > 1:
            was = f"got {getattr(spec, fact)} ({spec.sources[fact]})"
            names.findings.append(
                CheckpointError(
                    f"{fact}: {was}, but {explained} tensors have another shape, which {size} "
                    f"explains, e.g. {ref.name!r} {list(ref.shape)}",
                    hint="the config describes another model, or lacks the key",
                )
            )
            spec = other
    alike: dict[tuple[str, Shape, Shape], list[TensorRef]] = {}
    for name, shape in _misfits(spec, refs).items():
        kind = re.sub(r"^layers\.\d+\.", "layers.", name)
        alike.setdefault((kind, refs[name].shape, shape), []).append(refs[name])
    for (kind, got, shape), group in alike.items():
        is_fusion = kind == "fc.weight"
        names.findings.append(
            CheckpointError(
                f"tensor {_and_more(group)}: got shape {list(got)}, expected {list(shape)}".replace(
                    "-1", "any"
                ),
                hint=FUSION if is_fusion else "",
            )
        )


def _check_types(refs: Mapping[str, TensorRef], names: Canonical) -> None:
    """One finding for each element type that no weight may have."""
    wrong: dict[str, list[TensorRef]] = {}
    for ref in refs.values():
        if ref.dtype not in FLOATS:
            wrong.setdefault(ref.dtype, []).append(ref)
    for dtype, group in wrong.items():
        names.findings.append(
            CheckpointError(
                f"tensor {_and_more(group)}: got {dtype}, expected a 16- or 32-bit float",
                hint="save the weights as bfloat16, float16 or float32",
            )
        )


def _check_extent(
    spec: DrafterSpec, wanted: Shapes, missing: list[str], names: Canonical, folder: Path
) -> None:
    """Tensors that are not there, and tensors that nothing asks for."""
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


def _left_out(spec: DrafterSpec) -> dict[str, str]:
    """Tensors under a canonical name that an answer does not need, with the reason."""
    reasons = {"t2d": "says what d2t says"}
    if spec.vocab_map is VocabMap.IDENTITY:
        reasons["d2t"] = "maps every id to itself"
    if spec.family is Family.DSPARK:
        reasons["mask_embedding"] = "a placeholder in DSpark checkpoints"
    return reasons


def _and_more(group: list[TensorRef]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{group[0].name!r}{more}"


def _some(items: list[str], limit: int = 8) -> str:
    return ", ".join(items[:limit]) + (
        f" and {len(items) - limit} more" if len(items) > limit else ""
    )


QUANTISED: tuple[tuple[str, str], ...] = (
    # names of tensors, layout; of several the first is told
    (r"weight_scale_2$|weight_global_scale$", "NVFP4"),
    (r"(qzeros|g_idx)$", "GPTQ or AWQ"),
    (r"qweight$", "GPTQ or AWQ"),
    (r"(weight_packed|weight_shape)$", "compressed-tensors (packed)"),
    (r"weight_scale(_inv)?$|input_scale$", "FP8"),
    (r"\.(scales|biases)$", "MLX"),
)


def refuse_quantised(facts: Facts, decoded: DecodedTensors) -> None:
    """Add a finding for what of a checkpoint's quantised weights cannot be read.

    Nothing that follows from it is looked at any more: `Facts.is_whole` becomes false.

    Args:
        facts: the config.
        decoded: the checkpoint's tensors as they were read.
    """
    for path in (scope + key for scope in SCOPES for key in KEYS):
        facts.raw(path)
    facts.findings += decoded.findings
    layout, example = ("", "") if decoded.findings else _layout(decoded.tensors)
    if layout:
        said = "" if decoded.is_stated else ", and no quantization_config says how"
        facts.error(
            f"quantised weights ({layout}) are not supported{said}: tensor {example!r}",
            "give the publisher's files as they are, config included, or the unquantised "
            "checkpoint (bf16)",
            unsupported=True,
        )
    if layout or (decoded.findings and decoded.tensors):
        facts.is_whole = False


def _layout(refs: Mapping[str, TensorRef]) -> tuple[str, str]:
    """Return the layout that names and element types show, and a tensor that shows it."""
    for pattern, layout in QUANTISED:
        for name in refs:
            if re.search(pattern, name):
                return layout, name
    for name, ref in refs.items():
        if name.endswith("weight") and ref.dtype not in (*FLOATS, "float64"):
            return f"dtype {ref.dtype}", name
    return "", ""
