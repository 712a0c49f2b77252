"""Golden cases and trajectories written on the machine that has the pair (docs/records.md).

A golden case written from a drafter on the machine that has it (docs/records.md).

What is recorded is what the PyTorch module computes in float32 from the checkpoint, either from the
target's own features over a text or from drawn ones. Large things are left out: of a large
vocabulary the largest logits are kept, of a large checkpoint its hashes.

Trajectories written from a pair on the machine that has it (docs/records.md).

The drafter is its PyTorch module and the target runs in transformers, both in float32, so that a
replay through exported graphs compares two different ways to compute.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import new_bundle
from draftrt.files import cannot_write, sha256_of, write_atomically
from draftrt.provenance import command_line, now, tool_versions
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.signature import ANCHOR, TARGET_HIDDEN
from draftrt.spec import DrafterSpec, Family, TableSource
from draftrt.tolerances import LOGITS
from draftrt.validate.records.cases import (
    ARRAYS_FILE,
    CASE_FILE,
    CASE_VERSION,
    DRAFT_FOLDER,
    table_hash,
)
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.trajectories import TRAJECTORY_VERSION
from draftrt.validate.rounds.module import ModuleSession
from draftrt.validate.rounds.plan import windows_of

if TYPE_CHECKING:
    from draftrt.export.checkpoint.drafter import LoadedDrafter
    from draftrt.export.checkpoint.tensors import TensorRef
    from draftrt.runtime.decoding.loop import DecodeLoop


WEIGHTS = ("auto", "copy", "hash")
MAX_COPY_BYTES = 64 << 20  # auto keeps weights up to here
MAX_LOGITS_WIDTH = 4096  # wider logits are recorded by their largest
NUM_TOP = 16
MAX_WINDOW = 512  # a longer sliding window is not passed by drawn features
KEPT = ("hidden", "base_logits", "logits", "confidence")
IDS = {"draft_ids": "tokens", "draft_vocab_ids": "draft_ids", "candidates": "candidates"}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What to record.

    Attributes:
        prompt: text whose decoding gives features and anchors; None: they are drawn.
        num_rounds: rounds.
        weights: whether checkpoint and borrowed tables are stored, one of `WEIGHTS`: ``copy`` them,
            only their ``hash``, or ``auto``, by their size.
        about: what the case is for.
        seed: of drawn features.
        sample_from_anchor: alignment where the config leaves it open.
        family: family where the config's labels are wrong.
    """

    prompt: str | None = None
    num_rounds: int = 4
    weights: str = "auto"
    about: str = ""
    seed: int = 0
    sample_from_anchor: bool | None = None
    family: Family | None = None


def record_case(
    draft: Path,
    target: Path,
    out: Path,
    options: RecordOptions,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a golden case.

    Args:
        draft: drafter checkpoint.
        target: target checkpoint; it is run only for a prompt, in transformers.
        out: the folder to make.
        options: see `RecordOptions`.
        report: gets one line a step.

    Raises:
        RecordError: ``out`` exists.
        DraftrtError: drafter or target cannot be read, do not fit, or cannot be run.
    """
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target

    if out.exists():
        raise RecordError(
            f"{out} exists", hint="choose another -o folder; records are not replaced"
        )
    loaded = load_drafter(
        draft,
        read_target(target, draft=draft),
        sample_from_anchor=options.sample_from_anchor,
        family=options.family,
    )
    tables = borrowed_tables(loaded)
    files = _files(loaded)
    size = sum(path.stat().st_size for path in files) + sum(
        4 * table.shape[0] * table.shape[1] for table in tables.values()
    )
    is_copy = options.weights == "copy" or (options.weights == "auto" and size <= MAX_COPY_BYTES)
    report(f"{'stored' if is_copy else 'known by hash'}: {size / 1e6:.1f} MB of weights and tables")
    rounds, source = _rounds(loaded, target, options)
    arrays = _arrays(loaded.spec, rounds, report)
    facts = _facts(loaded, options, files, source)
    with new_bundle(out) as folder:
        if is_copy:
            (folder / DRAFT_FOLDER).mkdir()
            for path in files:
                shutil.copyfile(path, folder / DRAFT_FOLDER / path.name)
            arrays |= {name: table.read().float().numpy() for name, table in tables.items()}
        else:
            facts["tables"] = {name: table_hash(table) for name, table in tables.items()}
        np.savez_compressed(folder / ARRAYS_FILE, allow_pickle=False, **arrays)
        (folder / CASE_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    report(f"record: {out}")
    return out


def _arrays(
    spec: DrafterSpec, rounds: Iterator[tuple[Arrays, Arrays]], report: Callable[[str], None]
) -> Arrays:
    arrays: Arrays = {}
    for index, (feeds, outputs) in enumerate(rounds):
        report(f"round {index}: {feeds['target_hidden'].shape[1]} rows of context")
        named = {ANCHOR: feeds[ANCHOR][0], TARGET_HIDDEN: feeds[TARGET_HIDDEN]}
        named |= _kept(spec, outputs)
        arrays |= {f"r{index}.{name}": array for name, array in named.items()}
    return arrays


def _facts(
    loaded: LoadedDrafter, options: RecordOptions, files: Sequence[Path], source: str
) -> dict[str, Any]:
    from draftrt.export.checkpoint.vocabulary import brought

    assert loaded.target is not None
    brings = brought(loaded.target)
    return {
        "version": CASE_VERSION,
        "reference": f"draftrt's PyTorch module, float32 on the CPU, {source}",
        **({"about": options.about} if options.about else {}),
        "target_vocab_size": loaded.target.spec.vocab_size,
        "num_target_layers": loaded.target.spec.num_layers,
        **({"target_config": brings} if brings else {}),
        "checkpoint": {path.name: sha256_of(path) for path in files},
        **({} if options.family is None else {"family": options.family.value}),
        **(
            {}
            if options.sample_from_anchor is None
            else {"sample_from_anchor": options.sample_from_anchor}
        ),
        "command": command_line(),
        "created": now(),
        "tools": tool_versions(),
    }


def borrowed_tables(loaded: LoadedDrafter) -> dict[str, TensorRef]:
    """Return the target's tables that a drafter reads, by their name in a record."""
    from draftrt.export.checkpoint.target import EMBED, HEAD

    assert loaded.target is not None
    spec, held = loaded.spec, loaded.target.tables
    wanted = {"embed_tokens": (spec.embed_source, EMBED), "lm_head": (spec.head_source, HEAD)}
    return {
        name: held[key] for name, (source, key) in wanted.items() if source is TableSource.TARGET
    }


def _files(loaded: LoadedDrafter) -> list[Path]:
    """Return the files of a checkpoint that its answers depend on."""
    own = {ref.file for ref in loaded.tensors.values() if ref.file is not None}
    own = {path for path in own if path.parent == loaded.folder}
    index = loaded.folder / "model.safetensors.index.json"
    return [loaded.folder / "config.json", *sorted(own), *([index] if index.is_file() else [])]


def _rounds(
    loaded: LoadedDrafter, target: Path, options: RecordOptions
) -> tuple[Iterator[tuple[Arrays, Arrays]], str]:
    if options.prompt is None:
        return _drawn(loaded, options), f"features drawn from N(0, 1), seed {options.seed}"
    text = f"{target.resolve().name} in transformers, features of {options.prompt!r:.60}"
    return _decoded(loaded, target, options, options.prompt), text


def _drawn(loaded: LoadedDrafter, options: RecordOptions) -> Iterator[tuple[Arrays, Arrays]]:
    """Draft from drawn features: past a short sliding window, then none, half and all accepted."""
    from draftrt.export.check.feeds import round_feeds

    spec = loaded.spec
    windows = [window for window in windows_of(spec) if window <= MAX_WINDOW]
    wanted = (1, 1 + spec.num_draft_tokens // 2, 1 + spec.num_draft_tokens)
    rows = [max([11, *(window + 3 for window in windows)])]
    rows += [wanted[index % 3] for index in range(options.num_rounds - 1)]
    rng, length = np.random.default_rng(options.seed), 0
    with ModuleSession(loaded, sum(rows) + spec.block_size) as session:
        for count in rows:
            feeds = round_feeds(spec, rng, new_rows=count, context_length=length)
            length += count
            yield dict(feeds), session.run(feeds)


def _decoded(
    loaded: LoadedDrafter, target: Path, options: RecordOptions, prompt: str
) -> Iterator[tuple[Arrays, Arrays]]:
    """Decode a text greedily, target in transformers; yield what the drafter saw and said."""
    from draftrt.runtime.decoding.drafter import DraftSession
    from draftrt.runtime.decoding.loop import DecodeLoop
    from draftrt.runtime.decoding.options import DecodeOptions
    from draftrt.runtime.targets.huggingface import HfTarget
    from draftrt.runtime.text.stream import load_tokenizer

    spec = loaded.spec
    prompt_ids = load_tokenizer(target).encode(prompt).ids
    most = options.num_rounds * (spec.num_draft_tokens + 1) + 1
    calls: list[tuple[Arrays, Arrays]] = []

    def watch(feeds: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> None:
        calls.append(({name: array.copy() for name, array in feeds.items()}, dict(outputs)))

    context = len(prompt_ids) + most + spec.block_size
    with ModuleSession(loaded, context, watch) as session:
        model = HfTarget(target, spec.target_layer_ids)
        decoder = DecodeLoop(model, DraftSession(spec, session))
        wanted = DecodeOptions(max_tokens=most, stop_ids=frozenset(), schedule="all")
        with closing(decoder.decode(prompt_ids, wanted)) as rounds:
            for one in rounds:  # the prefill's drafts nothing
                yield from calls
                calls.clear()
                if one.index >= options.num_rounds:
                    break
        model.close()


def _kept(spec: DrafterSpec, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return what is recorded of a round's outputs, without the batch axis."""
    has_map = spec.vocab_map.value != "identity"
    kept = {
        recorded: outputs[name][0]
        for name, recorded in IDS.items()
        if name in outputs and (has_map or name != "draft_vocab_ids")
    }
    for name in KEPT:
        is_twice = name == "base_logits" and spec.markov is None  # then they are the logits
        is_wide = name in LOGITS and outputs["logits"].shape[-1] > MAX_LOGITS_WIDTH
        if name in outputs and not is_twice and not is_wide:
            kept[name] = outputs[name][0]
    logits = outputs["logits"][0]
    if logits.shape[-1] > MAX_LOGITS_WIDTH:
        kept["top_ids"] = np.argsort(-logits, axis=-1, kind="stable")[:, :NUM_TOP]
        kept["top_logits"] = np.take_along_axis(logits, kept["top_ids"], axis=-1)
    return kept


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
        "version": TRAJECTORY_VERSION,
        "reference": "draftrt's loop, drafter in PyTorch, target in transformers, float32",
        "command": command_line(),
        "created": now(),
        "tools": tool_versions(),
        "rows": _rows(draft, target, options, report),
    }
    try:
        write_atomically(out, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise cannot_write(out, error, RecordError, hint="choose another -o file") from error
    return out


def _rows(
    draft: Path, target: Path, options: TrajectoryOptions, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import read_target
    from draftrt.runtime.decoding.drafter import DraftSession
    from draftrt.runtime.decoding.loop import DecodeLoop
    from draftrt.runtime.prompts import asked, room_problem
    from draftrt.runtime.targets.huggingface import HfTarget
    from draftrt.runtime.text.stream import load_tokenizer

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
        pair = (DecodeLoop(model, DraftSession(loaded.spec, session)), DecodeLoop(model))
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
                    schedule="all",
                )
                rows.append(_row(text, ids, wanted, *pair))
                report(f"row {len(rows) - 1}: {len(rows[-1]['acceptance_lengths'])} rounds")
        model.close()
    return rows


def _row(
    text: str, ids: list[int], options: DecodeOptions, drafted: DecodeLoop, plain: DecodeLoop
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
