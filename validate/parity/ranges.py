"""How much of float16's range a drafter uses: a range report, in PyTorch's own float16.

ONNX Runtime computes much of a float16 graph in float32 on a CPU, where an overflow on a GPU would
pass unseen; PyTorch rounds every result to float16 as a GPU does. The features are scaled so that
the largest is as large as real ones get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.compare.arrays import Finding
from draftrt.compare.measures import Judge
from draftrt.errors import UnsupportedError
from draftrt.runtime.prompts import Form, Request
from draftrt.signature import DRAFT_IDS, TARGET_HIDDEN
from draftrt.spec import Precision
from draftrt.tolerances import FP16_AGAINST_FP32, LARGEST_FEATURE
from draftrt.validate.compare.tables import render
from draftrt.validate.rounds.module import ReferenceRounds
from draftrt.validate.rounds.plan import (
    DEFAULT_ROUNDS,
    Feeds,
    encode_prompts,
    random_rounds,
    real_rounds,
)

if TYPE_CHECKING:
    from draftrt.export.models.drafter import Drafter


LARGEST_FP16 = 65504.0
NEAR = 0.5  # share of the range from which on a point is called near its end


@dataclass(frozen=True, slots=True)
class Point:
    """One place where float16 is held.

    Attributes:
        name: the weight last met on the way to it, and what made it.
        largest: largest magnitude seen; infinite once a value was not finite.
    """

    name: str
    largest: float

    @property
    def share(self) -> float:
        """The part of float16's range that was used; above 1 there was an overflow."""
        return self.largest / LARGEST_FP16


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReport:
    """What a range report showed.

    Attributes:
        bundle: its folder.
        features: magnitude that the largest feature was scaled to.
        form: of the prompts whose features these are, in words; empty: they are random.
        num_rounds: rounds drafted.
        points: every place that holds float16, largest magnitude first.
        ids: draft ids against the same weights computed in float32.
    """

    bundle: Path
    features: float
    form: str
    num_rounds: int
    points: Sequence[Point]
    ids: Finding

    @property
    def is_finite(self) -> bool:
        """Whether nothing overflowed."""
        return bool(self.points) and all(point.share <= 1 for point in self.points)


def check_ranges(
    path: Path | str,
    *,
    features: float = LARGEST_FEATURE,
    num_rounds: int = DEFAULT_ROUNDS,
    prompts: Sequence[Request] = (),
    form: Form | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> RangeReport:
    """Draft rounds in PyTorch's float16 and record the largest magnitude at every point.

    Args:
        path: a bundle of an fp16 drafter.
        features: magnitude to scale the largest feature to.
        num_rounds: rounds of each sequence.
        prompts: whose features the bundle's target computes, a sequence each; without any,
            the features are random: a short sequence, and a long one that fills the caches.
        form: how they are written out for the target; None: through the chat template where its
            tokenizer has one.
        report: gets a line about that.

    Raises:
        BundleError: no bundle there, its files changed, or prompts without a target graph.
        UnsupportedError: the graph holds no float16.
    """
    from draftrt.export.check.reference import module_from_bundle

    bundle = Bundle.open(path, verify=Verify.ALL)
    entry = bundle.graph("draft")
    if entry.precision is not Precision.FP16:
        raise UnsupportedError(
            f"{bundle.path}: its draft graph is {entry.precision.value}, expected fp16",
            hint="float32 and bfloat16 reach 3e38; export with --precision fp16 to see its range",
        )
    words = ""
    if prompts:
        encoded, words = encode_prompts(bundle, prompts, form or Form(), report)
        rounds = real_rounds(bundle, prompts, encoded, num_rounds)
    else:
        rounds = random_rounds(bundle, num_rounds)
    points, ids, count = record_ranges(
        module_from_bundle(bundle, extra_outputs=()),
        module_from_bundle(bundle, extra_outputs=(), is_wide=True),
        (_scaled(feeds, features) for feeds in rounds),
        entry.max_context,
    )
    return RangeReport(
        bundle=bundle.path,
        features=features,
        form=words,
        num_rounds=count,
        points=points,
        ids=ids,
    )


def record_ranges(
    narrow: Drafter, wide: Drafter, rounds: Iterable[Feeds], max_context: int
) -> tuple[list[Point], Finding, int]:
    """Draft rounds with a drafter in float16 and with the same in float32.

    Args:
        narrow: the drafter that is watched.
        wide: the drafter that its ids are compared with.
        rounds: feeds of each round, caches not included.
        max_context: rows of the caches.

    Returns:
        Every point that holds float16, largest magnitude first; the ids; and the rounds drafted.
    """
    from draftrt.export.tracing.fp16_peaks import Fp16Peaks

    spec, recorder = narrow.spec, Fp16Peaks(narrow)
    is_sequential = spec.markov is not None or spec.selector is not None
    judge = Judge({DRAFT_IDS: FP16_AGAINST_FP32}, is_sequential=is_sequential)
    watched = ReferenceRounds(narrow, Precision.FP16, max_context)
    compared = ReferenceRounds(wide, Precision.FP32, max_context)
    count = 0
    for feeds in rounds:
        with recorder:
            found = watched.run(feeds)
        judge(compared.run(feeds), found)
        count += 1
    points = [Point(*item) for item in sorted(recorder.largest.items(), key=lambda item: -item[1])]
    return points, judge.shares()[DRAFT_IDS], count


def _scaled(feeds: Feeds, features: float) -> Feeds:
    hidden = feeds[TARGET_HIDDEN]
    return feeds | {TARGET_HIDDEN: hidden * np.float32(features / np.abs(hidden).max())}


SHOWN = 24


def verdict(point: Point) -> str:
    """Return ``fits``, ``near`` (half of the range or more) or ``overflows``."""
    if point.share > 1:
        return "overflows"
    return "near" if point.share >= NEAR else "fits"


def as_text(report: RangeReport, *, show_all: bool = False) -> list[str]:
    """Return a heading, the points from the largest on, and what became of the ids."""
    kind = f"the target's features of prompts ({report.form})" if report.form else "random features"
    heading = (
        f"{report.bundle}: fp16 in PyTorch, {report.num_rounds} rounds, {kind} up to "
        f"{report.features:g}"
    )
    points = report.points if show_all else report.points[:SHOWN]
    rows = [["tensor", "largest |x|", "share of 65504", "verdict"]]
    rows += [
        [point.name, f"{point.largest:.4g}", f"{point.share:.2%}", verdict(point)]
        for point in points
    ]
    lines = [heading, *render(rows)]
    if len(points) < len(report.points):
        lines.append(f"... and {len(report.points) - len(points)} smaller ones (--all)")
    ids = report.ids
    return [
        *lines,
        f"draft ids: {ids.num_equal} of {ids.num_compared} as with the same weights in float32",
    ]


def as_json(report: RangeReport) -> dict[str, Any]:
    """Return the whole report as JSON data; a magnitude that is no number becomes a text."""
    return {
        "bundle": str(report.bundle),
        "features": report.features,
        "real_features": bool(report.form),
        "form": report.form or None,
        "rounds": report.num_rounds,
        "finite": report.is_finite,
        "points": [
            {
                "tensor": point.name,
                "largest": point.largest if math.isfinite(point.largest) else str(point.largest),
                "verdict": verdict(point),
            }
            for point in report.points
        ],
        "ids": report.ids.to_json(),
    }
