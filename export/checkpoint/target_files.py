"""What a target's folder holds, and whether it is a target at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftrt.codec import BOM, read_bytes, read_object, token_ids
from draftrt.errors import CheckpointError, DraftrtError, SpecError
from draftrt.export.checkpoint.safetensors import read_config
from draftrt.export.config.family import ARCHITECTURES
from draftrt.spec import TargetSpec

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"
TOKENIZER_FILES = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    TEMPLATE,
    GENERATION,
    "special_tokens_map.json",
)
MORE_TEMPLATES = "additional_chat_templates"  # a folder of further ones, named by their files
MOST_BEYOND = 256  # added tokens without a row; more of them belong to another model
SHOWN = 4


def check_target_files(folder: Path, spec: TargetSpec) -> tuple[list[DraftrtError], list[str]]:
    """Check everything that `copy_target_files` copies, before any work.

    Returns:
        Findings, and warnings.
    """
    findings, warnings = _check_tokenizer(folder, spec)
    configs: dict[str, dict[str, Any]] = {}
    for name in TOKENIZER_FILES[1:]:
        path = folder / name
        if not _is_there(path):
            continue
        try:
            if name != TEMPLATE:
                configs[name] = read_object(path, CheckpointError)
        except CheckpointError as error:
            findings.append(error)
    templates = _templates(folder)
    for path in templates:
        try:
            _check_template(path)
        except CheckpointError as error:
            findings.append(error)
    findings += _check_generation(folder / GENERATION, configs.get(GENERATION, {}))
    if not templates and not configs.get(TOKENIZER_CONFIG, {}).get("chat_template"):
        warnings.append(f"{folder.name} has no chat template: prompts will be taken as they are")
    return findings, warnings


def copy_target_files(target: Path, folder: Path) -> None:
    """Copy what `check_target_files` checked, without byte order marks, into a new folder."""
    folder.mkdir()
    for name in TOKENIZER_FILES:
        if _is_there(target / name):
            content = read_bytes(target / name, CheckpointError)
            (folder / name).write_bytes(content.removeprefix(BOM))
    for path in _templates(target):
        if path.parent.name == MORE_TEMPLATES:
            (folder / MORE_TEMPLATES).mkdir(exist_ok=True)
            content = read_bytes(path, CheckpointError)
            (folder / MORE_TEMPLATES / path.name).write_bytes(content.removeprefix(BOM))


def _templates(folder: Path) -> list[Path]:
    """Return the files of a tokenizer's chat templates."""
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    return [folder / TEMPLATE, *more] if _is_there(folder / TEMPLATE) else more


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _check_tokenizer(folder: Path, spec: TargetSpec) -> tuple[list[DraftrtError], list[str]]:
    path = folder / TOKENIZER
    if not _is_there(path):
        others = sorted(p.name for p in folder.glob("*token*"))
        return [
            CheckpointError(
                f"{folder}: no {TOKENIZER}, found {others}",
                hint="save the fast tokenizer beside the target with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        ], []
    try:
        data = read_object(path, CheckpointError)
        vocab = data.get("model", {}).get("vocab", {})
        ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
        added = {token["id"]: str(token["content"]) for token in data.get("added_tokens") or []}
        return _check_ids(path, ids, added, spec.vocab_size)
    except CheckpointError as error:
        return [error], []
    except (AttributeError, KeyError, TypeError) as error:
        return [CheckpointError(f"{path}: not a tokenizer file: {error!r:.100}")], []


def _check_ids(
    path: Path, ids: Iterable[object], added: dict[int, str], size: int
) -> tuple[list[DraftrtError], list[str]]:
    """Refuse another model's ids; a few added tokens without a row are told."""
    known = [one for one in (*ids, *added) if isinstance(one, int)]
    beyond = sorted({one for one in known if one >= size})
    ordinary = [one for one in beyond if one not in added]
    if not known or min(known) < 0 or ordinary or len(beyond) > MOST_BEYOND:
        got = f"ids from {min(known)} to {max(known)}" if known else "no ids"
        return [
            CheckpointError(
                f"{path}: got {got}, expected 0 to {size - 1} (the target's vocabulary)",
                hint="the tokenizer belongs to another model",
            )
        ], []
    if not beyond:
        return [], []
    names = ", ".join(f"{added[one]!r:.40} ({one})" for one in beyond[:SHOWN])
    more = f" and {len(beyond) - SHOWN} more" if len(beyond) > SHOWN else ""
    return [], [
        f"tokens outside the target's vocabulary of {size}: {names}{more}; a prompt with one is "
        "refused"
    ]


def _check_template(path: Path) -> None:
    try:
        text = read_bytes(path, CheckpointError).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not UTF-8") from error
    if text.count("{%") != text.count("%}"):
        raise CheckpointError(
            f"{path}: unbalanced template tags",
            hint="the file was cut short; copy it from the publisher",
        )


def _check_generation(path: Path, config: dict[str, Any]) -> list[DraftrtError]:
    try:
        token_ids(config.get("eos_token_id"), "eos_token_id")
    except ValueError as error:
        return [
            CheckpointError(f"{path}: {error}", hint="it says which tokens end a text; repair it")
        ]
    return []


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
