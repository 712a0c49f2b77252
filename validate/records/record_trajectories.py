"""Trajectories written from a pair on the machine that has it (docs/records.md).

The drafter is its PyTorch module and the target runs in transformers, both in float32, so that a
replay through exported graphs compares two different ways to compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftrt.files import write_atomically
from draftrt.provenance import command_line, now, tool_versions
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.spec import Family
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.trajectory_records import VERSION
from draftrt.validate.rounds.module_session import ModuleSession

if TYPE_CHECKING:
    from draftrt.runtime.decoding.loop import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryOptions:
    """What to record.

    Attributes:
        prompts: texts, no chat template.
        max_tokens: new tokens of each.
        thresholds: confidence thresholds; every prompt is decoded with each.
        sample_from_anchor: alignment where the config leaves it open.
        family: family where the config's labels are wrong.
    """

    prompts: Sequence[str]
    max_tokens: int = 96
    thresholds: tuple[float, ...] = (0.0,)
    sample_from_anchor: bool | None = None
    family: Family | None = None


def record_trajectories(
    draft: Path,
    target: Path,
    out: Path,
    options: TrajectoryOptions,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Decode prompts greedily, without stop tokens, and write what every round did.

    Args:
        draft: drafter checkpoint.
        target: target checkpoint with tokenizer.
        out: the JSON file to write.
        options: see `TrajectoryOptions`.
        report: gets one line a row.

    Raises:
        RecordError: ``out`` exists.
        DraftrtError: the pair cannot be read, does not fit, or cannot be run; a threshold without a
            confidence head.
    """
    if out.exists():
        raise RecordError(f"{out} exists", hint="choose another -o file; records are not replaced")
    content = {
        "version": VERSION,
        "reference": "draftrt's loop, drafter in PyTorch, target in transformers, float32",
        "command": command_line(),
        "created": now(),
        "tools": tool_versions(),
        "rows": _rows(draft, target, options, report),
    }
    try:
        write_atomically(out, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise RecordError(f"{out}: cannot be written: {error.strerror}") from error
    return out


def _rows(
    draft: Path, target: Path, options: TrajectoryOptions, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.runtime.decoding.drafter import Drafter
    from draftrt.runtime.decoding.loop import Decoder
    from draftrt.runtime.prompts import asked, room_problem
    from draftrt.runtime.targets.huggingface import HfTarget
    from draftrt.runtime.text import load_tokenizer

    loaded = load_drafter(
        draft,
        read_target(target, draft=draft),
        sample_from_anchor=options.sample_from_anchor,
        family=options.family,
    )
    tokenizer = load_tokenizer(target)
    prompts = [(text, list(tokenizer.encode(text).ids)) for text in options.prompts]
    longest = max(len(ids) for _, ids in prompts)
    rows = []
    with ModuleSession(loaded, longest + options.max_tokens + loaded.spec.block_size) as session:
        model = HfTarget(target, loaded.spec.target_layer_ids)
        pair = (Decoder(model, Drafter(loaded.spec, session)), Decoder(model))
        every = [ids for _, ids in prompts]
        if problem := room_problem(
            pair[0], list(map(asked, options.prompts)), every, options.max_tokens
        ):
            raise problem
        for threshold in options.thresholds:
            for text, ids in prompts:
                wanted = DecodeOptions(
                    max_tokens=options.max_tokens,
                    stop_ids=frozenset(),
                    confidence_threshold=threshold,
                )
                rows.append(_row(text, ids, wanted, *pair))
                report(f"row {len(rows) - 1}: {len(rows[-1]['acceptance_lengths'])} rounds")
        model.close()
    return rows


def _row(
    text: str, ids: list[int], options: DecodeOptions, drafted: Decoder, plain: Decoder
) -> dict[str, Any]:
    rounds = list(drafted.decode(ids, options))
    output = [token for one in rounds for token in one.token_ids]
    own = [token for one in plain.decode(ids, options) for token in one.token_ids]
    accepted = [one.num_accepted for one in rounds[1:]]
    return {
        "prompt": text,
        "prompt_ids": ids,
        "output_ids": output,
        "confidence_threshold": options.confidence_threshold,
        "target_greedy_equal": output == own,
        "acceptance_lengths": [count + 1 for count in accepted],
        "proposal_lengths": [one.num_verified for one in rounds[1:]],
        "accepted_draft_lengths": accepted,
    }
