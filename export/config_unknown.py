"""What of a config nothing has read: refused, unless it is known or declared to be harmless."""

from __future__ import annotations

from draftrt.errors import ChoiceError
from draftrt.export.facts import Facts
from draftrt.export.harmless import HARMLESS, INHERITED


def refuse_unknown(facts: Facts, body: str, ignore: frozenset[str]) -> None:
    """Add findings for keys that nothing has read, and for names of keys that there are not.

    Called when everything else has been read.

    Args:
        facts: the config.
        body: where the keys of the layers are, empty or ending in a dot.
        ignore: unknown keys the user declares to be without effect.
    """
    _refuse_quantised(facts)
    for key, value in facts.table(body[:-1]).items() if body else ():
        if facts.config.get(key) == value:  # some exporters repeat the layers' keys at the top
            facts.raw(key)
    scopes = ["", "dflash_config", "dspark_config", *([body[:-1]] if body else [])]
    unknown = [key for scope in scopes for key in facts.unknown_keys(scope, HARMLESS | INHERITED)]
    if refused := [key for key in unknown if key not in ignore]:
        facts.error(
            f"keys that this version does not know: {refused}",
            "if a key has no effect on the forward pass, accept it with --ignore-key NAME",
        )
    # A key that the list of harmless ones has taken up meanwhile may still be named.
    idle = sorted(one for one in ignore - set(unknown) if one.split(".")[-1] not in HARMLESS)
    if idle:
        facts.findings.append(
            ChoiceError(
                f"{facts.path.name}: --ignore-key {', '.join(idle)}: expected keys that this "
                f"version does not know, which are {unknown or 'none'}",
                hint="what is read cannot be ignored, and what is not there need not be",
            )
        )


def _refuse_quantised(facts: Facts) -> None:
    quantised = [
        key
        for key in ("quantization_config", "compression_config", "hf_quant_config")
        if facts.raw(key) is not None
    ]
    for key in quantised:
        table = facts.table(key)
        method = (
            table.get("quant_method") or table.get("quant_algo") or table.get("format") or "unnamed"
        )
        facts.error(
            f"{key}: quantised weights ({method}) are not supported",
            "take the publisher's bf16 checkpoint",
            unsupported=True,
        )
