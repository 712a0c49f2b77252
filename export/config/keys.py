"""What of a config nothing has read: refused, unless it is known or declared to be harmless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftrt.errors import ChoiceError
from draftrt.export.config.harmless import HARMLESS, INHERITED
from draftrt.export.config.meaning import is_off, meaning_of
from draftrt.export.config.reader import Facts


def refuse_unknown(facts: Facts, body: str, ignore: frozenset[str]) -> None:
    """Add findings for keys that nothing has read, and for names of keys that there are not.

    Called when everything else has been read.

    Args:
        facts: the config.
        body: where the keys of the layers are, empty or ending in a dot.
        ignore: unknown keys the user declares to be without effect.
    """
    for key, value in facts.table(body[:-1]).items() if body else ():
        if facts.config.get(key) == value:  # some exporters repeat the layers' keys at the top
            facts.raw(key)
    scopes = ["", "dflash_config", "dspark_config", *([body[:-1]] if body else [])]
    unknown = [key for scope in scopes for key in facts.unknown_keys(scope, HARMLESS | INHERITED)]
    refuse_keys(facts, unknown, ignore)


def refuse_keys(
    facts: Facts, unknown: Sequence[str], ignore: frozenset[str], *, of: str = "", hint: str = ""
) -> None:
    """Add findings for unknown keys, and for names in ``ignore`` that may not stand there.

    A key that by its name decides what is computed (`draftrt.export.config.meaning`) is never
    ignored, and no hint offers to.

    Args:
        facts: the config.
        unknown: dotted paths of keys that nothing has read.
        ignore: those that the user declares to be without effect.
        of: whose keys they are, as ``--ignore-key`` has it before a name: ``target:``, or empty.
        hint: another way out, for a key that may not be ignored.
    """
    unknown = [key for key in unknown if not is_off(key, facts.raw(key))]
    decisive = {key: topic for key in unknown if (topic := meaning_of(key))}
    if refused := [key for key in decisive if key not in ignore]:
        facts.error(
            "keys that this version does not read, and that by their names change what is "
            f"computed: {', '.join(f'{key} ({decisive[key]})' for key in refused)}",
            hint or "without them it would be another model; use the publisher's own runtime",
            unsupported=True,
        )
    if refused := [key for key in unknown if key not in decisive and key not in ignore]:
        facts.error(
            f"keys that this version does not know: {refused}",
            f"if a key has no effect on the forward pass, accept it with --ignore-key {of}NAME",
        )
    _check_ignored(facts, unknown, decisive, ignore, of)


def _check_ignored(
    facts: Facts,
    unknown: Sequence[str],
    decisive: Mapping[str, str],
    ignore: frozenset[str],
    of: str,
) -> None:
    """Add a finding for every name in ``ignore`` that decides something or that is not there."""
    name = facts.path.name
    for key in sorted(ignore & set(decisive)):
        facts.findings.append(
            ChoiceError(
                f"{name}: --ignore-key {of}{key}: cannot be ignored: by its name it decides "
                f"{decisive[key]}",
                hint="without it this would be another model",
            )
        )
    # A key that the list of harmless ones has taken up meanwhile may still be named.
    idle = sorted(one for one in ignore - set(unknown) if one.split(".")[-1] not in HARMLESS)
    if idle:
        choices = [of + key for key in unknown if key not in decisive]
        facts.findings.append(
            ChoiceError(
                f"{name}: --ignore-key {', '.join(of + one for one in idle)}: expected keys that "
                f"this version does not know, which are {choices or 'none'}",
                hint="what is read cannot be ignored, and what is not there need not be",
            )
        )
