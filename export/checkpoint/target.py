"""A target's facts and its two shared tables, read from config and headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftrt.codec import token_ids
from draftrt.dtypes import FLOATS
from draftrt.errors import CheckpointError, DraftrtError, UnsupportedError, collect
from draftrt.export.checkpoint.quantized.read import DecodedTensors
from draftrt.export.checkpoint.safetensors import open_checkpoint
from draftrt.export.checkpoint.target_files import check_roles
from draftrt.export.checkpoint.tensors import TensorRef
from draftrt.export.config.reader import Facts
from draftrt.spec import TargetSpec

EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"
PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "model.text_model.",
    "language_model.",
    "model.",
    "transformer.",
    "model.llm.",
    "backbone.",
    "",
)
EMBED_NAMES = (
    "embed_tokens.weight",
    "embed.weight",
    "embeddings.weight",
    "wte.weight",
    "word_embeddings.weight",
)
HEAD_NAMES = ("lm_head.weight", "unembed.weight", "output.weight", "embed_out.weight")


@dataclass(frozen=True, slots=True)
class TargetCheckpoint:
    """A target as a drafter sees it.

    Attributes:
        spec: its facts.
        tables: ``embed_tokens.weight`` and ``lm_head.weight``, where they were found.
        folder: its checkpoint; None for tables in memory.
        text: the config of its text model as it is.
        decoded: its tensors, and how quantised ones are stored.
    """

    spec: TargetSpec
    tables: Mapping[str, TensorRef]
    folder: Path | None = None
    text: Mapping[str, Any] = field(default_factory=dict)
    decoded: DecodedTensors = field(default_factory=lambda: DecodedTensors({}))


def read_target(folder: Path, *, draft: Path | None = None) -> TargetCheckpoint:
    """Read a target's config and headers.

    Args:
        folder: its checkpoint.
        draft: the drafter's folder where one goes with it: swapped ones are told as that.

    Raises:
        DraftrtError: config or weights missing or ill-formed; all findings at once.
    """
    check_roles(draft, folder)
    facts, decoded, findings = open_checkpoint(folder)
    # A layout that is not read costs the graph alone; one that is and is broken is a broken target.
    findings += [one for one in decoded.findings if not isinstance(one, UnsupportedError)]
    tables = _tables(folder, decoded.tensors, facts, findings) if decoded.tensors else {}
    spec = read_target_spec(facts, tables)
    collect([*findings, *facts.findings])
    text = facts.config.get(_body(facts)[:-1], facts.config)
    return TargetCheckpoint(spec, tables, folder, text, decoded)


def read_target_spec(facts: Facts, tables: Mapping[str, TensorRef]) -> TargetSpec:
    """Resolve a target's facts; findings stay in ``facts``."""
    body = _body(facts)
    names = facts.raw("architectures")
    architecture = (
        names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    )
    if not architecture:
        facts.error("architectures is missing, expected the target's architecture")
    facts.say("architecture", "architectures")
    padded = facts.number("vocab_size", [f"{body}vocab_size"], low=2, high=1 << 26)
    logical = facts.number(
        "vocab_size",
        [f"{body}unpadded_vocab_size", "unpadded_vocab_size"],
        low=2,
        high=1 << 26,
        default=padded,
        why=f"{body}vocab_size",
    )
    table = tables.get(EMBED)
    rows = table.shape[0] if table is not None else None
    facts.say(
        "table_rows", f"tensor {table.name}" if table is not None else "no embedding table was read"
    )
    if rows is not None and rows < logical:
        facts.error(
            f"embedding table {table.name if table else ''} has {rows} rows, expected at least "
            f"{logical} (vocab_size)"
        )
    spec = TargetSpec(
        architecture=architecture,
        model_type=facts.text("model_type", [_first(facts, body, "model_type")]),
        num_layers=facts.number("num_layers", [f"{body}num_hidden_layers"], low=1, high=4096),
        hidden_size=facts.number("hidden_size", [f"{body}hidden_size"], low=2, high=1 << 24),
        vocab_size=logical,
        table_rows=rows,
        tie_word_embeddings=_is_tied(facts, body),
        eos_token_ids=_eos(facts, body),
        sources={
            key: facts.sources.get(key, "")  # empty beside a finding only
            for key in TargetSpec.__dataclass_fields__
            if key != "sources"
        },
    )
    return spec


def _body(facts: Facts) -> str:
    """Return where the text model's keys are, empty or ending in a dot."""
    keys = ("text_config", "llm_config", "language_config")
    return next((f"{key}." for key in keys if facts.table(key)), "")


def _first(facts: Facts, body: str, key: str) -> str:
    """Return the path of a key: the text model's own, else that of the model around it."""
    return f"{body}{key}" if facts.raw(f"{body}{key}") is not None else key


def _is_tied(facts: Facts, body: str) -> bool:
    return facts.flag(
        "tie_word_embeddings",
        [_first(facts, body, "tie_word_embeddings")],
        default=False,
        why="default false",
    )


def _eos(facts: Facts, body: str) -> tuple[int, ...]:
    for path in dict.fromkeys((f"{body}eos_token_id", "eos_token_id")):
        value = facts.raw(path)
        if value is None:
            continue
        facts.say("eos_token_ids", path)
        try:
            return token_ids(value, path)
        except ValueError as error:
            facts.error(str(error))
            return ()
    facts.say("eos_token_ids", "not stated")
    return ()


def _tables(
    folder: Path, refs: Mapping[str, TensorRef], facts: Facts, findings: list[DraftrtError]
) -> dict[str, TensorRef]:
    """Find the embedding and LM-head tables; a tied head is the embedding."""
    found: dict[str, TensorRef] = {}
    embed = _find(refs, EMBED_NAMES)
    head = _find(refs, HEAD_NAMES)
    body = _body(facts)
    tied = facts.raw(_first(facts, body, "tie_word_embeddings"))
    if head is None and embed is not None:
        if tied is False:
            findings.append(
                CheckpointError(
                    f"{folder}: no LM head found, and tie_word_embeddings is false",
                    hint=f"expected a tensor named one of {HEAD_NAMES}",
                )
            )
        else:
            head = embed
    if embed is None:
        findings.append(
            CheckpointError(
                f"{folder}: no embedding table found",
                hint=f"expected a tensor named one of {EMBED_NAMES}",
            )
        )
    for name, ref in ((EMBED, embed), (HEAD, head)):
        if ref is None or (ref is embed and name == HEAD and EMBED not in found):
            continue  # not there, or told with the embedding
        if ref.dtype not in FLOATS or len(ref.shape) != 2:
            findings.append(
                CheckpointError(
                    f"{folder}: {ref.name} is {ref.dtype} {list(ref.shape)}, expected a 16- or "
                    "32-bit float table",
                    hint="a quantised embedding or head cannot be shared with the drafter",
                )
            )
            continue
        found[name] = ref
    return found


def _find(refs: Mapping[str, TensorRef], names: tuple[str, ...]) -> TensorRef | None:
    for prefix in PREFIXES:
        for name in names:
            if prefix + name in refs:
                return refs[prefix + name]
    return None
