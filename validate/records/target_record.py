"""Target cases written on the machine that has the target (docs/records.md).

What is recorded is what transformers computes in float32 from the whole text, without a cache that
was ever cropped: prompts in one call each, and rounds whose rows are each computed from everything
before them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import new_bundle
from draftrt.errors import FeedError
from draftrt.files import sha256_of
from draftrt.provenance import command_line, now, tool_versions
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.validate.records.files import RecordError
from draftrt.validate.records.record import MAX_COPY_BYTES
from draftrt.validate.records.target_cases import (
    FEW_PREFILL_FEATURES,
    MOST_PREFILL_FEATURES,
    NUM_TOP,
    PREFILL_FILE,
    RECORD_FILE,
    ROUND_ARRAYS_FILE,
    ROUNDS_FILE,
    TARGET_FOLDER,
    TARGET_VERSION,
    greedily_accepted,
)

if TYPE_CHECKING:
    from draftrt.runtime.targets.base import TargetRows
    from draftrt.runtime.targets.huggingface import HfTarget

WEIGHT_FILES = ("*.safetensors", "model.safetensors.index.json")
PLACES = (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 511, 512)  # of long prompts, and the last
SHORT = 16  # a prompt of so many tokens is recorded in all of its rows
LONGEST_STEPPED = 65  # tokens of a prompt that is computed token by token as well
MOST_PROMPT_IDS = 1 << 14
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecordOptions:
    """What to record.

    Attributes:
        prompts: texts, no chat template.
        taps: layers whose outputs are recorded, 0-based; -1 the embedding output.
        num_rounds: rounds of each session.
        max_rows: most rows of a round.
        weights: ``copy``, ``hash`` or ``auto``, as for a drafter's case.
        about: what the case is for.
        seed: of what is drawn in the rounds.
    """

    prompts: Sequence[str]
    taps: tuple[int, ...]
    num_rounds: int = 4
    max_rows: int = 8
    weights: str = "auto"
    about: str = ""
    seed: int = 0


def record_target_case(
    target: Path,
    out: Path,
    options: TargetRecordOptions,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a target case.

    Args:
        target: target checkpoint with tokenizer.
        out: the folder to make.
        options: see `TargetRecordOptions`.
        report: gets one line a step.

    Raises:
        RecordError: ``out`` exists.
        DraftrtError: the target cannot be read or run, or a prompt does not fit.
    """
    from draftrt.runtime.targets.huggingface import HfTarget, say_recomputed
    from draftrt.runtime.text.stream import load_tokenizer

    if out.exists():
        raise RecordError(
            f"{out} exists", hint="choose another -o folder; records are not replaced"
        )
    model = HfTarget(target, options.taps)
    if slow := say_recomputed(model):
        report(f"note: {slow}")
    room = options.num_rounds * options.max_rows
    tokenizer = load_tokenizer(target)
    prompts = _prompts([tokenizer.encode(text).ids for text in options.prompts], model, room)
    prefill = _prefill(model, prompts, report)
    sessions, arrays = _sessions(model, prompts, options, report)
    taps = np.array(options.taps, np.int64)
    files = [target / "config.json"]
    files += sorted(path for kind in WEIGHT_FILES for path in target.glob(kind))
    size = sum(path.stat().st_size for path in files)
    is_copy = options.weights == "copy" or (options.weights == "auto" and size <= MAX_COPY_BYTES)
    report(f"{'stored' if is_copy else 'known by hash'}: {size / 1e6:.1f} MB of weights")
    with new_bundle(out) as folder:
        if is_copy:
            (folder / TARGET_FOLDER).mkdir()
            for path in files:
                shutil.copyfile(path, folder / TARGET_FOLDER / path.name)
        np.savez_compressed(folder / PREFILL_FILE, allow_pickle=False, taps=taps, **prefill)
        np.savez_compressed(folder / ROUND_ARRAYS_FILE, allow_pickle=False, **arrays)
        rounds = {"version": TARGET_VERSION, "taps": list(options.taps), "sessions": sessions}
        _write_json(folder / ROUNDS_FILE, rounds)
        _write_json(folder / RECORD_FILE, _facts(target, options, files))
    model.close()
    report(f"record: {out}")
    return out


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _facts(target: Path, options: TargetRecordOptions, files: Sequence[Path]) -> dict[str, Any]:
    return {
        "version": TARGET_VERSION,
        "reference": f"{target.resolve().name} in transformers, float32 on the CPU, every answer "
        "from the whole text",
        **({"about": options.about} if options.about else {}),
        "checkpoint": {path.name: sha256_of(path) for path in files},
        "command": command_line(),
        "created": now(),
        "tools": tool_versions(),
    }


def _prompts(
    encoded: Sequence[Sequence[int]], model: HfTarget, room: int
) -> list[NDArray[np.int64]]:
    """Return the prompts, each of another length: of equal ones the later loses its last tokens."""
    most = min(model.max_context - room, MOST_PROMPT_IDS)
    wrong = [n for n, ids in enumerate(encoded, 1) if not 1 <= len(ids) <= most]
    if wrong:
        raise FeedError(
            f"prompts {wrong[:8]} have no tokens or too many, expected 1 to {most} of each",
            hint="shorten them, or record fewer --rounds",
        )
    prompts: dict[int, NDArray[np.int64]] = {}
    for ids in encoded:
        length = len(ids)
        while length in prompts:
            length -= 1
        if length > 0:
            prompts[length] = np.array(ids[:length], np.int64)
    return list(prompts.values())


def _whole(model: HfTarget, ids: NDArray[np.int64]) -> TargetRows:
    """Return the answers about every token, computed in one call from nothing."""
    model.rollback(0)
    return model.verify(ids, want_logits=True)


def _prefill(
    model: HfTarget, prompts: Sequence[NDArray[np.int64]], report: Callable[[str], None]
) -> Arrays:
    arrays: Arrays = {"lengths": np.array([len(ids) for ids in prompts], np.int64)}
    for ids in prompts:
        length, name = len(ids), f"p{len(ids)}."
        report(f"prompt of {length} tokens")
        answers = _whole(model, ids)
        logits = answers.logits
        assert logits is not None
        largest = -np.sort(-logits, axis=1)[:, :2]
        few = sorted({place for place in (*PLACES, length - 2, length - 1) if 0 <= place < length})
        rows = np.arange(length) if length <= SHORT else np.array(few)
        arrays |= {
            f"{name}ids": ids,
            f"{name}argmax": answers.token_ids,
            f"{name}margin": largest[:, 0] - largest[:, 1],
            f"{name}rows": rows.astype(np.int64),
            f"{name}logits": logits[rows],
            f"{name}features": answers.features[0, rows],
        }
        if length <= LONGEST_STEPPED:
            arrays[f"{name}step_difference"] = _step_difference(model, ids, answers)
    return arrays


def _step_difference(
    model: HfTarget, ids: NDArray[np.int64], whole: TargetRows
) -> NDArray[np.float64]:
    """Return the largest difference, of logits and of features, of one token a call."""
    model.rollback(0)
    worst = np.zeros(2)
    assert whole.logits is not None
    for index in range(len(ids)):
        rows = model.verify(ids[index : index + 1], want_logits=True)
        gaps = (
            np.abs(rows.logits - whole.logits[index]),
            np.abs(rows.features[0] - whole.features[0, index]),
        )
        worst = np.maximum(worst, [gap.max(initial=0.0) for gap in gaps])
    return worst


def _sessions(
    model: HfTarget,
    prompts: Sequence[NDArray[np.int64]],
    options: TargetRecordOptions,
    report: Callable[[str], None],
) -> tuple[list[dict[str, Any]], Arrays]:
    """Play rounds behind the first tokens of a prompt and behind whole ones, by turns of a kind."""
    longest = max(prompts, key=len)
    starts = [longest[:count] for count in (1, 2) if count < len(longest)] + list(prompts)
    sessions: list[dict[str, Any]] = []
    arrays: Arrays = {}
    for index, prompt in enumerate(starts):
        kind = ("greedy", "forced")[index % 2]
        report(f"session {index}: {kind}, {options.num_rounds} rounds behind {len(prompt)} tokens")
        rng = np.random.default_rng([options.seed, index])
        session = _Session(model, prompt, kind, options.max_rows, f"s{index}.", rng)
        session.play(options.num_rounds)
        sessions.append(session.facts)
        arrays |= session.arrays
    return sessions, arrays


class _Session:
    """Rounds behind a prompt, each computed from the whole text before it.

    Attributes:
        facts: its entry of `ROUNDS_FILE`.
        arrays: its part of `ROUND_ARRAYS_FILE`.
    """

    def __init__(
        self,
        model: HfTarget,
        prompt: NDArray[np.int64],
        kind: str,
        max_rows: int,
        name: str,
        rng: np.random.Generator,
    ) -> None:
        self._model, self._rng, self._name = model, rng, name
        self._committed = prompt
        self.facts: dict[str, Any] = {
            "prompt_ids": prompt.tolist(),
            "max_rows": max_rows,
            "kind": kind,
            "rounds": [],
        }
        self.arrays: Arrays = {}

    def play(self, num_rounds: int) -> None:
        """Play the prompt and so many rounds."""
        max_rows, is_greedy = self.facts["max_rows"], self.facts["kind"] == "greedy"
        answers = _whole(self._model, self._committed)
        assert answers.logits is not None
        whole = len(self._committed) <= MOST_PREFILL_FEATURES
        kept = answers.features[0] if whole else answers.features[0, -FEW_PREFILL_FEATURES:]
        place = f"{self._name}prefill."
        self.arrays |= {f"{place}features": kept, **_top(place, answers.logits[-1])}
        vocabulary = answers.logits.shape[1]
        anchor = int(answers.token_ids[-1])
        own = self._own_text(num_rounds * max_rows) if is_greedy else []
        start = len(self._committed)
        for index in range(num_rounds):
            rows = int(self._rng.integers(1, max_rows + 1))
            if is_greedy:  # the target's own text, one token of it replaced, or none
                done = len(self._committed) - start
                ids = np.array([anchor, *own[done + 1 : done + rows]], np.int64)
                wrong = int(self._rng.integers(1, len(ids) + 1))
                ids[wrong:] = (ids[wrong:] + 1) % vocabulary
            else:
                ids = self._rng.integers(0, vocabulary, rows).astype(np.int64)
            anchor = self._round(index, ids, is_greedy=is_greedy)
        self.facts["committed_ids"] = self._committed.tolist()

    def _own_text(self, count: int) -> list[int]:
        from draftrt.runtime.decoding.loop import DecodeLoop

        options = DecodeOptions(max_tokens=count, stop_ids=frozenset())
        rounds = DecodeLoop(self._model).decode(self._committed.tolist(), options)
        return [token for one in rounds for token in one.token_ids]

    def _round(self, index: int, ids: NDArray[np.int64], *, is_greedy: bool) -> int:
        """Verify rows and keep some; return the next anchor of a greedy session."""
        answers = _whole(self._model, np.concatenate([self._committed, ids]))
        assert answers.logits is not None
        logits, chosen = answers.logits[-len(ids) :], answers.token_ids[-len(ids) :]
        if is_greedy:
            accepted = greedily_accepted(ids, chosen)
        else:
            accepted = int(self._rng.integers(0, len(ids)))
        place = f"{self._name}r{index}."
        self.arrays |= {
            f"{place}argmax": chosen,
            f"{place}features": answers.features[0, -len(ids) :],
            **_top(place, logits),
        }
        self.facts["rounds"].append({"ids": ids.tolist(), "accepted": accepted})
        self._committed = np.concatenate([self._committed, ids[: accepted + 1]])
        return int(chosen[accepted])


def _top(place: str, logits: NDArray[np.float32]) -> Arrays:
    ids = np.argsort(-logits, axis=-1, kind="stable")[..., :NUM_TOP].astype(np.int64)
    values = np.take_along_axis(logits, ids, axis=-1)
    return {f"{place}top_ids": ids, f"{place}top_values": values}
