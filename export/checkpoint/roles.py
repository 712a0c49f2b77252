"""Whether a folder holds a drafter or a target, so that two that were swapped are told as that."""

from __future__ import annotations

import re
from pathlib import Path

from draftrt.errors import CheckpointError, SpecError
from draftrt.export.checkpoint.checkpoint_folder import read_config
from draftrt.export.config.family import ARCHITECTURES

DRAFTER, TARGET = "a drafter", "a target"
OF_DRAFTERS = (
    "dflash_config",
    "dspark_config",
    "speculators_config",
    "speculators_model_type",
    "target_layer_ids",
)
_DRAFTERS = re.compile(r"d(flash|spark)\d*(draft)?model", re.IGNORECASE)
_TARGETS = re.compile(r"For(CausalLM|ConditionalGeneration)$")


def role_of(folder: Path) -> str:
    """Return `DRAFTER`, `TARGET`, or an empty text where the config does not tell."""
    try:
        config = read_config(folder)
    except CheckpointError:
        return ""  # told by the reader of the folder
    stated = config.get("architectures")
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    architecture = names[0] if names else ""
    if architecture in ARCHITECTURES or _DRAFTERS.search(architecture):
        return DRAFTER
    if _TARGETS.search(architecture):
        return TARGET
    return DRAFTER if any(config.get(key) is not None for key in OF_DRAFTERS) else ""


def _is_bundle(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and not (folder / "config.json").exists()


def check_roles(draft: Path | None, target: Path | None) -> None:
    """Refuse folders that hold the other model, and bundles.

    Args:
        draft: folder given for the drafter; None for none.
        target: folder given for the target; None for none.

    Raises:
        SpecError: swapped, one folder for both, or one of them of the wrong kind.
    """
    for path, what in ((draft, "the drafter's checkpoint"), (target, "the target's checkpoint")):
        if path is not None and _is_bundle(path):
            raise SpecError(
                f"{path} is a bundle, expected the folder of {what}",
                hint="give the folder with config.json and *.safetensors that bundles are made of",
            )
    found = {path: role_of(path) for path in (draft, target) if path is not None}
    draft_is_target = draft is not None and found[draft] == TARGET
    target_is_drafter = target is not None and found[target] == DRAFTER
    if not draft_is_target and not target_is_drafter:
        return
    if draft is not None and target is not None and draft.resolve() == target.resolve():
        raise SpecError(
            f"drafter and target are one folder, {draft}: it holds {found[draft]}",
            hint="give the drafter as DRAFT and the model it drafts for with --target",
        )
    if draft_is_target and target_is_drafter:
        raise SpecError(
            f"--target is a drafter: swapped. DRAFT {draft} holds a target and --target {target} a "
            "drafter",
            hint=f"give {target} as DRAFT and {draft} with --target",
        )
    if draft_is_target:
        raise SpecError(
            f"{draft} holds a target, expected a drafter",
            hint="give a DFlash, DFlash2 or DSpark drafter; a target goes with --target",
        )
    raise SpecError(
        f"--target {target} holds a drafter, expected the model it drafts for",
        hint="give the drafter as DRAFT and its target with --target",
    )
