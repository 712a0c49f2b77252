"""A drafter's folder and its target to one checked description with unread tensors.

Everything that can be wrong is found here, before any graph is traced, and told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftrt.dtypes import FLOATS
from draftrt.errors import DraftrtError, SpecError, UnsupportedError, collect
from draftrt.export.checkpoint.claims import claim, refuse_quantised
from draftrt.export.checkpoint.names import Canonical, canonicalise
from draftrt.export.checkpoint.quantized.read import DecodedTensors
from draftrt.export.checkpoint.safetensors import open_checkpoint
from draftrt.export.checkpoint.target import TargetCheckpoint
from draftrt.export.checkpoint.target_files import check_roles
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.checkpoint.vocabulary import read_borrowed, read_vocabulary
from draftrt.export.config.drafter import ConfigFacts, read_config
from draftrt.export.config.reader import Facts
from draftrt.spec import DrafterSpec, Family


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
        decoded: how its quantised weights are stored.
    """

    spec: DrafterSpec
    tensors: Mapping[str, TensorRef]
    original_names: Mapping[str, str]
    ignored: Mapping[str, str]
    folder: Path
    target: TargetCheckpoint | None
    decoded: DecodedTensors = field(default_factory=lambda: DecodedTensors({}))


def load_drafter(
    folder: Path,
    target: TargetCheckpoint | None,
    *,
    sample_from_anchor: bool | None = None,
    ignore_keys: frozenset[str] = frozenset(),
    family: Family | None = None,
) -> LoadedDrafter:
    """Read, resolve and check a drafter.

    Args:
        folder: drafter checkpoint with config.json and safetensors.
        target: the target it is to draft for; None to look at the drafter alone.
        sample_from_anchor: the user's statement where the config leaves alignment open.
        ignore_keys: unknown config keys the user declares to be without effect.
        family: the user's statement where the config's labels are wrong.

    Raises:
        DraftrtError: every contradiction, missing or unclaimed tensor and refusal found.
    """
    check_roles(folder, None)
    facts, decoded, findings = open_checkpoint(folder)
    refs = decoded.tensors
    if (folder / "mask_embedding.pt").exists():
        findings.append(
            UnsupportedError(
                f"{folder / 'mask_embedding.pt'}: pickled weights are never loaded",
                hint="convert it to a safetensors tensor mask_embedding beside the other weights",
            )
        )
    names = canonicalise(refs)
    refuse_quantised(facts, decoded)
    facts.warnings += decoded.notes
    shapes = {name: ref.shape for name, ref in names.tensors.items()}
    fusion = names.tensors.get("fc.weight")
    config = read_config(
        facts,
        shapes,
        stored_dtype=fusion.dtype if fusion and fusion.dtype in FLOATS else "bfloat16",
        sample_from_anchor=sample_from_anchor,
        ignore_keys=ignore_keys,
        family=family,
    )
    spec = _assemble(facts, config, names, target) if facts.is_whole else None
    findings += [*facts.findings]
    if target is not None and spec is not None:
        findings += _check_target(spec, target)
    tensors: dict[str, TensorRef] = {}
    if spec is not None and refs:
        tensors = claim(spec, names, target, folder)
    findings += _refused(names, findings)
    collect([*findings, *names.findings])
    assert spec is not None
    return LoadedDrafter(spec, tensors, names.original, names.ignored, folder, target, decoded)


def _refused(names: Canonical, said: list[DraftrtError]) -> list[DraftrtError]:
    """One finding for each thing that tensors show and that is not supported.

    What the config's findings have said already is not said again.
    """
    told = " ".join(finding.message for finding in said)
    return [
        UnsupportedError(
            f"tensor {found[0]!r}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {what} "
            "is not supported",
            hint="dropping it would give another model; use the publisher's own runtime",
        )
        for what, found in names.refused.items()
        if f"{what} is not supported" not in told
    ]


def _assemble(
    facts: Facts, config: ConfigFacts, names: Canonical, target: TargetCheckpoint | None
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


def _check_target(spec: DrafterSpec, target: TargetCheckpoint) -> list[DraftrtError]:
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
