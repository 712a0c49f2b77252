"""What configs say of the quantisation: method, sizes, and modules that are left as they were."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from draftrt.codec import read_object, shown
from draftrt.errors import CheckpointError, UnsupportedError

MODELOPT_FILE = "hf_quant_config.json"
# files beside config.json, the object in them, and the method that one without a name has
FILES = (
    ("quantization_config.json", "", ""),
    ("quantize_config.json", "", "gptq"),
    ("quant_config.json", "", "awq"),
    (MODELOPT_FILE, "quantization", "modelopt"),
)
KEYS = ("quantization_config", "compression_config", "quantization", "hf_quant_config")
SCOPES = ("", "text_config.", "transformer_layer_config.", "llm_config.", "language_config.")
SKIPPED = (
    "ignore",
    "modules_to_not_convert",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
)
ALIASES = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}


@dataclass(frozen=True, slots=True)
class Settings:
    """A checkpoint's quantisation as its config states it.

    Attributes:
        method: ``quant_method``, in the spelling of transformers.
        where: the object that states it, for messages.
        table: that object.
        skipped: modules that are not quantised: names, prefixes, patterns.
    """

    method: str
    where: str
    table: Mapping[str, Any]
    skipped: tuple[str, ...] = ()

    def skips(self, module: str) -> str:
        """Return the entry that says that a module stays as it was; empty for none."""
        return next((entry for entry in self.skipped if matches(entry, module)), "")


def stated(folder: Path, config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return every object that speaks of quantisation, by the place it has.

    Raises:
        CheckpointError: one of the files beside the config cannot be read.
    """
    found = {}
    for scope in SCOPES:
        inner = config.get(scope[:-1], {}) if scope else config
        for key in KEYS if isinstance(inner, Mapping) else ():
            table = inner.get(key)
            if isinstance(table, Mapping) and table:
                found[scope + key] = table
    for name, key, method in FILES:
        if not (folder / name).is_file():
            continue
        table = read_object(folder / name, CheckpointError)
        table = table.get(key, {}) if key else table
        if isinstance(table, Mapping) and table:
            found[name] = {"quant_method": method, **table} if method else table
    return found


def settings_of(found: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings, of which several places must not differ in method or sizes.

    Args:
        found: what `stated` returned, not empty.

    Raises:
        UnsupportedError: the method has no name.
        CheckpointError: two places contradict each other.
    """
    where, table = next(iter(found.items()))
    method = method_of(table)
    for other, own in list(found.items())[1:]:
        pairs = [(key, table.get(key), own.get(key)) for key in ("bits", "group_size", "sym")]
        pairs += [("quant_algo", table.get("quant_algo"), own.get("quant_algo"))]
        pairs += [("quant_method", method, method_of(own))]
        for key, one, two in pairs:
            if one is not None and two is not None and one != two and "" not in (one, two):
                raise CheckpointError(
                    f"{where}.{key} is {shown(one)}, and {other}.{key} is {shown(two)}",
                    hint="two files describe the quantisation and disagree; nothing is guessed",
                )
    skipped = [entry for own in found.values() for key in SKIPPED for entry in _names(own.get(key))]
    dynamic = table.get("dynamic")
    for pattern in dynamic if isinstance(dynamic, Mapping) else ():
        skipped += [f"re:{pattern[2:]}"] if pattern.startswith("-:") else []
    return Settings(method, where, table, tuple(dict.fromkeys(skipped)))


def method_of(table: Mapping[str, Any]) -> str:
    """Return how an object names its method; empty where it does not."""
    method = str(table.get("quant_method") or "").strip()
    if not method and (table.get("quant_algo") or table.get("producer")):
        method = "modelopt"
    if not method and "config_groups" in table:
        method = "compressed-tensors"
    return ALIASES.get(method, method)


def _names(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def matches(entry: str, module: str) -> bool:
    """Whether an entry of such a list means a module.

    ``re:`` begins a regular expression from the name's start, ``*`` stands for anything; else it is
    the module's name, a prefix of it, or whole parts of it, in dots.
    """
    if entry.startswith("re:"):
        try:
            return re.match(entry[3:], module) is not None
        except re.error:
            return False
    if "*" in entry:
        return fnmatchcase(module, entry)
    return f".{entry}." in f".{module}."


def whole(
    settings: Settings,
    table: Mapping[str, Any],
    keys: Sequence[str],
    choices: Sequence[int] = (),
    default: int | None = None,
) -> int:
    """Return an integer of a config: one of the choices, or a size of groups.

    Raises:
        UnsupportedError: it is missing, no such number, or none of the choices.
    """
    key = next((key for key in keys if table.get(key) is not None), keys[0])
    value = table.get(key, default)
    value = default if value is None else value
    if isinstance(value, int) and not isinstance(value, bool):
        is_good = value in choices if choices else value == -1 or value > 0
        if is_good:
            return value
    expected = " or ".join(map(str, choices)) if choices else "a size, or -1 for all inputs"
    raise UnsupportedError(
        f"{settings.where}.{key}: got {shown(value)}, expected {expected}",
        hint="give the publisher's unquantised checkpoint (bf16), or one in such a layout",
    )
