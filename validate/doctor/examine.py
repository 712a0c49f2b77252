"""Why a drafter's drafts are not accepted: measured, then the usual suspects replayed.

The runtime decodes the prompts, which gives the acceptance as it is. Then the target's hidden
states are taken once, and drafters with one fact changed are replayed over the same rounds
(`draftrt.validate.doctor.replay`). A change is named only where the gain, paired round by round, is
beyond what chance gives any of the suspects once in a hundred examinations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.runtime.load import find_target, load
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import Form, Request, read_prompts
from draftrt.validate.compare.checkpoint import Fresh, read_fresh
from draftrt.validate.doctor.prompt_forms import FormResult, compare_forms, encode_forms
from draftrt.validate.doctor.recording import (
    Text,
    decode_texts,
    layers_needed,
    open_states,
    whole_rounds,
    with_states,
)
from draftrt.validate.doctor.replay import Replay, widened
from draftrt.validate.doctor.statistics import Estimate, estimate, paired
from draftrt.validate.doctor.suspects import Suspect, fresh_suspects, setting_of, suspects_of
from draftrt.validate.doctor.trial import FALSE_ALARMS, MIN_GAIN, Case, Tried, try_suspects

BINS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the user chooses.

    Attributes:
        target: the target's Hugging Face folder, which runs where the bundle holds no target graph;
            None for the folder it was exported from.
        draft: the drafter's checkpoint, to be read anew with ``target``.
        num_prompts: prompts taken from the file.
        max_tokens: new tokens of each.
        form: how prompts are written out for the target.
        with_forms: whether the other forms of the prompts are tried too.
        expected_length: acceptance length that the drafter's card states.
    """

    target: Path | None = None
    draft: Path | None = None
    num_prompts: int = 24
    max_tokens: int = 96
    form: Form = field(default_factory=Form)
    with_forms: bool = True
    expected_length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was measured and tried.

    Attributes:
        bundle: its folder.
        texts: the recorded texts with their rounds.
        length: acceptance length through the runtime.
        by_position: share of rounds in which the draft of that position was kept.
        by_context: (first, last) context length to acceptance length.
        graph_gain: accepted drafts of the module more than the graph's, a round.
        is_graph_worse: whether the graph drafts worse than its own module.
        tried: suspects, best first.
        form: the form of the prompts, in words.
        forms: the other forms of the prompts.
        expected_length: what the card states.
        fresh: facts and weights that the checkpoint, read anew, gives otherwise.
    """

    bundle: Path
    texts: Sequence[Text]
    length: Estimate
    by_position: tuple[float, ...]
    by_context: Mapping[tuple[int, int], Estimate]
    graph_gain: Estimate
    is_graph_worse: bool
    tried: Sequence[Tried]
    form: str = ""
    forms: Sequence[FormResult] = ()
    expected_length: float | None = None
    fresh: Fresh | None = None

    @property
    def better(self) -> list[Tried]:
        """Suspects that would raise acceptance, best first."""
        return [one for one in self.tried if one.is_better]

    @property
    def is_never(self) -> bool:
        """Whether no draft at all was kept."""
        return self.length.mean == 1.0

    @property
    def is_always(self) -> bool:
        """Whether every draft was kept."""
        return all(
            count == len(drafts)
            for text in self.texts
            for count, drafts in zip(text.accepted, text.drafted, strict=True)
        )

    @property
    def is_below_card(self) -> bool:
        """Whether the acceptance is clearly below what the card states."""
        return self.expected_length is not None and self.length.interval()[1] < self.expected_length

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found that would raise acceptance and nothing is suspicious."""
        return not (
            self.better
            or self.is_graph_worse
            or self.is_never
            or self.is_always
            or self.is_below_card
            or any(one.is_better for one in self.forms)
            or (self.fresh is not None and self.fresh.is_different)
        )


def examine(
    path: Path | str,
    prompts: Path,
    options: DoctorOptions,
    report: Callable[[str], None] = lambda line: None,
) -> Examination:
    """Measure a pair's acceptance and try the usual suspects.

    Args:
        path: the bundle.
        prompts: file of prompts.
        options: see `DoctorOptions`.
        report: gets one line a step.

    Raises:
        DraftrtError: the pair cannot be loaded or run, or the prompts yield too few rounds.
    """
    from draftrt.export.check.reference import module_from_bundle

    bundle = Bundle.open(path, verify=Verify.ALL)
    spec, lines = bundle.drafter(), read_prompts(prompts, options.num_prompts)
    if options.target is not None:
        find_target(bundle, options.target)
    fresh = None
    if options.draft is not None:
        fresh = read_fresh(bundle, options.draft, options.target)
    folder = None if "target" in bundle.manifest.graphs else options.target
    with load(bundle.path, target=folder) as pair:
        form, texts, forms = _decoded(pair, lines, options, report)
    texts = whole_rounds(texts, spec.block_size)
    taps = fresh.spec.target_layer_ids if fresh is not None else ()
    layers = layers_needed(spec, bundle.manifest.target.num_layers, taps)
    report(f"hidden states of layers {layers} ...")
    states = open_states(bundle, folder, layers)
    texts = [with_states(text, states, layers) for text in texts]
    weights = widened(dict(module_from_bundle(bundle, is_wide=True).named_parameters()))
    own = Suspect(fact="", change="as it is", spec=spec)
    base = list(Replay(own, weights, texts).accepted())
    anew = {} if fresh is None else widened(fresh.contents())
    case = Case(texts=texts, weights=weights, base=base, fresh=anew)
    suspects = [] if fresh is None else fresh_suspects(spec, fresh)
    setting = setting_of(bundle, texts, options.draft, options.target, "d2t" in weights)
    suspects += suspects_of(spec, setting)
    report(f"replaying {len(suspects)} changes over {sum(map(len, base))} rounds ...")
    tried = try_suspects(case, suspects)
    return _examined(bundle, case, tried, form, forms, fresh, options)


def _decoded(
    pair: Pair, prompts: Sequence[Request], options: DoctorOptions, report: Callable[[str], None]
) -> tuple[str, list[Text], list[FormResult]]:
    """Decode prompts in the form in use, and see whether another form does better."""
    form = options.form.settled(pair.template, prompts)
    encoded = encode_forms(
        pair, prompts, options.max_tokens, form=form, with_others=options.with_forms
    )
    for note in form.notes(pair.template, prompts):
        report(note)
    used, *others = encoded
    texts = decode_texts(pair, encoded[used], options.max_tokens, report)
    if not others:
        return used, texts, []
    report("other forms of the prompts ...")
    forms = compare_forms(
        pair,
        {form: encoded[form] for form in others},
        [[count + 1 for count in text.accepted] for text in texts],
        max_tokens=options.max_tokens,
        false_alarms=FALSE_ALARMS,
    )
    return used, texts, forms


def _examined(
    bundle: Bundle,
    case: Case,
    tried: Sequence[Tried],
    form: str,
    forms: Sequence[FormResult],
    fresh: Fresh | None,
    options: DoctorOptions,
) -> Examination:
    ran = [list(text.accepted) for text in case.texts]
    gain = paired(case.base, ran)
    return Examination(
        bundle=bundle.path,
        texts=case.texts,
        length=estimate([[count + 1 for count in text] for text in ran]),
        by_position=by_position(case.texts),
        by_context=by_context(case.texts),
        graph_gain=gain,
        is_graph_worse=gain.mean >= MIN_GAIN and gain.is_above(0.0, false_alarms=FALSE_ALARMS),
        tried=tried,
        form=form,
        forms=forms,
        expected_length=options.expected_length,
        fresh=fresh,
    )


def by_position(texts: Sequence[Text]) -> tuple[float, ...]:
    """Return, for each draft position, the share of rounds in which that draft was kept."""
    counts = [count for text in texts for count in text.accepted]
    most = max((len(drafts) for text in texts for drafts in text.drafted), default=0)
    return tuple(
        sum(count > place for count in counts) / max(len(counts), 1) for place in range(most)
    )


def by_context(texts: Sequence[Text]) -> dict[tuple[int, int], Estimate]:
    """Return the acceptance length by the number of tokens before the anchor, empty bins left out.

    The bounds are (first, last) context length of a bin, `BINS` cut to what occurred.
    """
    longest = max((max(text.anchors) for text in texts), default=0)
    found = {}
    for first, end in pairwise(BINS):
        values = [
            [
                count + 1
                for anchor, count in zip(text.anchors, text.accepted, strict=True)
                if first <= anchor < end
            ]
            for text in texts
        ]
        if any(values):
            found[first, min(end - 1, longest)] = estimate(values)
    return found
