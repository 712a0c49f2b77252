"""A whole bench: opens the pair, times it, its calls and its rivals, and reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from draftrt import __version__
from draftrt.bundle import ELSEWHERE, Bundle
from draftrt.bundle_files import Verify
from draftrt.errors import BundleError
from draftrt.provenance import peak_memory_bytes, this_machine
from draftrt.runtime.decoding.options import DecodeOptions, ScheduleKind
from draftrt.runtime.decoding.schedule import write_costs
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import Form, Request, read_prompts, room_problem
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.validate.bench.measure import Own, System, compare, measure_costs
from draftrt.validate.bench.report import BenchReport
from draftrt.validate.bench.rivals import check_rivals, load_rivals

Texts = Literal["general", "useless", "copying"]
# On the second few drafts of any drafter are kept; answers to the third repeat their prompt.
BUILT_IN: dict[Texts, Path | None] = {
    "general": None,
    "useless": Path(__file__).parent / "useless.txt",
    "copying": Path(__file__).parent / "copying.jsonl",
}
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "tensorrt-rtx", "tensorrt", "torch", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What to measure, and how; names as in the command line.

    Attributes:
        bundle: the bundle's folder.
        prompts: file of prompts; None: built-in ones.
        texts: which of those.
        form: how they are written out for the target.
        num_prompts: how many of them.
        max_tokens: new tokens of each.
        repeats: decodings of each.
        schedule: how many drafts are verified.
        target: the target's folder; None: where it was exported from.
        target_port: as for `draftrt.runtime.load.load`.
        backend: as there.
        device: as there.
        threads: as there; the rivals' too.
        rivals: whether to time them.
        draft: the drafter's checkpoint, for z-lab's loop.
        calibrate: whether to keep the costs in the bundle.
        ignore_memory: whether to load what takes more memory than there is.
    """

    bundle: Path
    prompts: Path | None = None
    texts: Texts = "general"
    form: Form = field(default_factory=Form)
    num_prompts: int = 8
    max_tokens: int = 128
    repeats: int = 3
    schedule: ScheduleKind = "auto"
    target: Path | None = None
    target_port: str | None = None
    backend: str = "onnxruntime"
    device: str = "cpu"
    threads: int = 1
    rivals: bool = False
    draft: Path | None = None
    calibrate: bool = False
    ignore_memory: bool = False
    verify: Verify = Verify.REMEMBERED


def run_bench(settings: BenchSettings, report: Callable[[str], None]) -> BenchReport:
    """Measure a pair; returns what was found.

    Args:
        settings: what and how.
        report: takes progress, a line at a time.

    Raises:
        DraftrtError: as `draftrt.runtime.load.load`; FeedError where a prompt and its tokens do
            not fit, before anything runs.
    """
    bundle = Bundle.open(settings.bundle, verify=settings.verify)
    spec = bundle.drafter()
    file = BUILT_IN[settings.texts] if settings.prompts is None else settings.prompts
    requests = read_prompts(file, settings.num_prompts)
    _check_places(bundle, settings)
    before = this_machine()
    with _loaded(settings) as pair:
        form = settings.form.settled(pair.template, requests)
        prompts = _encoded(pair, requests, form, settings.max_tokens)
        for note in form.notes(pair.template, requests):
            report(note)
        costs = measure_costs(pair, report)
        if settings.calibrate:
            write_costs(settings.bundle, pair.runs_as, costs[0])
            report(f"kept in the bundle: costs of {pair.runs_as}")
        options = DecodeOptions(schedule=settings.schedule, reuse_prefix=False)
        own = [Own(pair, options, speculate=speculate) for speculate in (False, True)]
        for one in own:
            one.decode(prompts[0], settings.max_tokens)
        peak, (rivals, notes) = peak_memory_bytes(), _rivals(bundle, settings)
        summaries = compare(
            [*own, *rivals],
            prompts,
            max_tokens=settings.max_tokens,
            repeats=settings.repeats,
            report=report,
        )
        return BenchReport(
            bundle=str(settings.bundle),
            pair=f"{spec.family.value}, {spec.num_draft_tokens} drafts a round; {pair.runs_as}",
            max_tokens=settings.max_tokens,
            num_prompts=len(prompts),
            form=form.describe(),
            repeats=settings.repeats,
            schedule=settings.schedule,
            versions=_versions(),
            before=before,
            after=this_machine(),
            systems=summaries,
            costs=costs,
            peak_memory_bytes=peak,
            cache_bytes_per_token=_cache_bytes(pair),
            notes=notes,
        )


def _check_places(bundle: Bundle, settings: BenchSettings) -> None:
    """Refuse what would fail once everything is timed."""
    if settings.rivals:
        check_rivals(bundle, settings.target, settings.draft)
    if settings.calibrate and not os.access(bundle.path, os.W_OK):
        raise BundleError(f"{bundle.path}: cannot be written, for --calibrate", hint=ELSEWHERE)


def _loaded(settings: BenchSettings) -> Pair:
    return load(
        settings.bundle,
        target=settings.target,
        target_port=settings.target_port,
        backend=settings.backend,
        device=settings.device,
        threads=settings.threads,
        verify=False,  # `run_bench` has opened it
        ignore_memory=settings.ignore_memory,
    )


def _encoded(
    pair: Pair, requests: list[Request], form: Form, max_tokens: int
) -> list[tuple[int, ...]]:
    prompts = form.encode(pair.encode, requests)
    if (problem := room_problem(pair.decoder, requests, prompts, max_tokens)) is not None:
        raise problem
    return prompts


def _rivals(bundle: Bundle, settings: BenchSettings) -> tuple[list[System], list[str]]:
    if not settings.rivals:
        return [], []
    return load_rivals(
        bundle, target=settings.target, draft=settings.draft, threads=settings.threads
    )


def _cache_bytes(pair: Pair) -> dict[str, int]:
    held = {} if pair.drafter is None else {"drafter": pair.drafter.cache_bytes_per_token}
    if isinstance(pair.target, GraphTarget):
        held["target"] = pair.target.cache_bytes_per_token
    return held


def _versions() -> dict[str, str]:
    found = {"draftrt": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
