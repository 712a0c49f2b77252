"""What suspects are taken from: the target, its tokenizer, and the configs at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftrt.bundle import Bundle
from draftrt.errors import BundleError
from draftrt.export.checkpoint.checkpoint_folder import read_config
from draftrt.json_file import read_object
from draftrt.validate.doctor.recording import Text
from draftrt.validate.doctor.suspects import Setting

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
        theta = _theta(read_config(target))
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


def _theta(config: dict[str, Any]) -> float | None:
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
