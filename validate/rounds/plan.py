"""Which rounds a comparison drafts, and what is fed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.bundle import Bundle
from draftrt.manifest import GraphEntry
from draftrt.quantization import DRAFT, TARGET
from draftrt.runtime.load import open_graph
from draftrt.runtime.prompts import Form, Request, encode_prompt, length_problem
from draftrt.runtime.targets.base import TargetRows
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.runtime.text.chat import ChatTemplate
from draftrt.runtime.text.stream import load_tokenizer
from draftrt.signature import ANCHOR, TARGET_HIDDEN
from draftrt.spec import DrafterSpec

SHORT = 5  # context of the short sequence's first round
DEFAULT_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """One round to compare.

    Attributes:
        context_length: rows committed before it; 0 starts a sequence.
        new_rows: T, rows of new context.
        graph: ONNX file, or what else computes.
    """

    context_length: int
    new_rows: int
    graph: str = ""


def plan_rounds(spec: DrafterSpec, max_context: int, num_rounds: int) -> list[PlannedRound]:
    """Return the rounds of a short sequence, then of one that fills all rows of the caches.

    After a sequence's first round the number of new rows goes through one (no draft was
    accepted), half the drafts and all of them; rounds that would not fit are left out.
    """
    room = max_context - spec.block_size
    wanted = rows_that_fit(spec, num_rounds - 1, room)
    left = room - sum(wanted)
    return [
        PlannedRound(context_length=sum(rows[:index]), new_rows=count)
        for rows in [[first, *wanted] for first in sorted({min(SHORT, left), left})]
        for index, count in enumerate(rows)
    ]


def rows_that_fit(spec: DrafterSpec, num_rounds: int, room: int) -> list[int]:
    """Return the new rows of the rounds behind a first one: none, half and all drafts accepted.

    Args:
        spec: the drafter.
        num_rounds: so many at most.
        room: rows that they and the first round share, one for the first at least.
    """
    drafts, wanted, total = spec.num_draft_tokens, list[int](), 0
    for count in islice(cycle((1, 1 + drafts // 2, 1 + drafts)), max(num_rounds, 0)):
        total += count
        if total >= room:
            break
        wanted.append(count)
    return wanted


def windows_of(spec: DrafterSpec) -> tuple[int, ...]:
    """Return the sliding windows of a drafter's layers, each once."""
    return tuple(sorted({rule.window for rule in spec.layers if rule.window is not None}))


def windows_beyond(spec: DrafterSpec, rounds: Sequence[PlannedRound]) -> tuple[int, ...]:
    """Return the windows that no round's context reaches past, so that nothing was ever cut off."""
    longest = max((one.context_length + one.new_rows for one in rounds), default=0)
    return tuple(window for window in windows_of(spec) if longest <= window)


def feeds_of(
    spec: DrafterSpec, entry: GraphEntry, rounds: Sequence[PlannedRound], *, seed: int = 0
) -> Iterator[Mapping[str, Any]]:
    """Yield the feeds of each round, always the same ones."""
    from draftrt.export.check.feeds import round_feeds, walk_to_compare

    rng = np.random.default_rng(seed)
    walk = walk_to_compare(entry.signature, entry.precision)
    for one in rounds:
        length = one.context_length
        yield round_feeds(spec, rng, new_rows=one.new_rows, context_length=length, walk=walk)


Feeds = dict[str, NDArray[Any]]


def encode_prompts(
    bundle: Bundle, prompts: Sequence[Request], form: Form, report: Callable[[str], None]
) -> tuple[list[tuple[int, ...]], str]:
    """Return the ids of prompts in a form, and the form in words.

    Raises:
        BundleError: no tokenizer, no chat template where one is needed, or it refuses a prompt.
    """
    folder = bundle.file("tokenizer")
    with ChatTemplate(folder) as template:
        settled = form.settled(template, prompts)
        for note in settled.notes(template, prompts):
            report(note)
        tokenizer = load_tokenizer(folder)
        ids = settled.encode(partial(encode_prompt, tokenizer, template), prompts)
    return ids, settled.describe()


def real_rounds(
    bundle: Bundle,
    prompts: Sequence[Request],
    ids: Sequence[tuple[int, ...]],
    num_rounds: int,
) -> Iterator[Feeds]:
    """Yield the feeds of a drafter's rounds, caches not included, a sequence for each prompt.

    A sequence's first round has the prompt's features; in those that follow one row, half the
    drafts and all of them are new, in turn. The anchors are the target's own greedy tokens.

    Args:
        bundle: with a target graph.
        prompts: what the target is asked.
        ids: the tokens of each.
        num_rounds: rounds of each sequence.

    Raises:
        BundleError: the bundle has no target graph.
        FeedError: a prompt and its rounds do not fit the target's caches.
    """
    drafts = bundle.drafter().num_draft_tokens
    wanted = list(islice(cycle((1, 1 + drafts // 2, 1 + drafts)), num_rounds - 1))
    _check_room(bundle, prompts, ids, sum(wanted))
    with open_graph(bundle, TARGET) as session:
        target = GraphTarget(session, bundle.graph(TARGET).max_context)
        for prompt_ids in ids:
            target.rollback(0)
            rows = target.prefill(np.array(prompt_ids, np.int64))
            length = len(prompt_ids)
            yield _feeds(bundle, length, 0) | _real(rows, rows.features)
            for count in wanted:
                parts = []
                for _ in range(count):
                    rows = target.verify(rows.token_ids[-1:])
                    parts.append(rows.features)
                features = np.concatenate(parts, axis=1)
                yield _feeds(bundle, count, length) | _real(rows, features)
                length += count


def _real(rows: TargetRows, features: NDArray[np.float32]) -> Feeds:
    return {ANCHOR: rows.token_ids[-1:].copy(), TARGET_HIDDEN: features}


def random_rounds(bundle: Bundle, num_rounds: int) -> Iterator[Feeds]:
    """Yield the feeds of a short sequence and of one that fills the caches, of random features."""
    entry = bundle.graph(DRAFT)
    for one in plan_rounds(bundle.drafter(), entry.max_context, num_rounds):
        yield _feeds(bundle, one.new_rows, one.context_length)


def _feeds(bundle: Bundle, new_rows: int, context_length: int) -> Feeds:
    one = PlannedRound(context_length=context_length, new_rows=new_rows)
    return dict(next(feeds_of(bundle.drafter(), bundle.graph(DRAFT), [one], seed=context_length)))


def _check_room(
    bundle: Bundle, prompts: Sequence[Request], ids: Sequence[tuple[int, ...]], later: int
) -> None:
    rows = bundle.graph(DRAFT).max_context
    most = rows - bundle.drafter().block_size - later
    why = f"{later} more and a block follow each in caches of {rows} rows"
    if (problem := length_problem(prompts, ids, most, why)) is not None:
        raise problem
