"""Everything at once: export, plan, check on ONNX Runtime, parity, a sample run.

Each step is the function behind the command of the same name. A step that fails ends the work with
its own error; what earlier steps finished stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import require
from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.engines.build import build_plan
from draftrt.engines.capabilities import Backend, request_findings
from draftrt.engines.environment import backend_version
from draftrt.engines.memory import check_fits
from draftrt.engines.options import BuildOptions
from draftrt.engines.pair import ALL, chosen_graphs, next_lines
from draftrt.errors import ParityError, collect
from draftrt.files import temporary_folder
from draftrt.manifest import PlanEntry
from draftrt.quantization import DRAFT, Prefer, Quantization, describe
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load, open_graph
from draftrt.runtime.pair import Completion
from draftrt.runtime.prompts import Form, asked
from draftrt.runtime.text.chat import ChatTemplate
from draftrt.signature import ANCHOR, CONTEXT_LENGTH, DRAFT_IDS, TARGET_HIDDEN
from draftrt.spec import Family, Precision
from draftrt.validate.parity.pair import PairReport, as_text, check_pair

T = TypeVar("T")
DEFAULT_SMS = (86, 89, 120)
DEFAULT_PROMPT = "Table of 10 up to 18:"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the user chooses.

    Attributes:
        precision: of the bundle and its plan. A bf16 graph has no kernels on this CPU: the sample
            run then uses an fp32 export of the same drafter, which is not kept, and parity the
            float32 twin of the graph.
        quantization: graph name to the parts whose weights are stored quantised.
        prefer: which of several forms holds a checkpoint's own codes.
        sample_from_anchor: alignment where the config leaves it open.
        family: family where the config's labels are wrong.
        ignore_keys: unknown config keys declared to be without effect; ``target:`` before those of
            the target.
        backend: builder of the plan.
        graph: which graphs get a plan: ``draft``, ``target``, or all that the bundle has.
        sms: compute capabilities of the plan; empty only for classic TensorRT, which builds for
            the GPU of the machine.
        prompt: what the sample run says to the target.
        form: how it is written out for the target.
        max_tokens: most new tokens of the sample run.
        with_run: whether to load the target and decode.
    """

    precision: Precision = Precision.FP16
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    prefer: Prefer | None = None
    sample_from_anchor: bool | None = None
    family: Family | None = None
    ignore_keys: frozenset[str] = frozenset()
    backend: Backend = Backend.TENSORRT_RTX
    graph: str = ALL
    sms: tuple[int, ...] = DEFAULT_SMS
    prompt: str = DEFAULT_PROMPT
    form: Form = field(default_factory=Form)
    max_tokens: int = 64
    with_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step.

    Attributes:
        name: what was done.
        result: what came out, in a few words.
        seconds: wall time.
    """

    name: str
    result: str
    seconds: float


@dataclass(slots=True)
class EngineReport:
    """What was made and seen.

    Attributes:
        bundle: its folder.
        bundle_bytes: size of its files without plans.
        plans: graph name to its plan's record.
        completion: the sample run; None when there was none.
        form: the form of its prompt, in words.
        steps: finished steps in order.
        next_lines: the command that runs the bundle on its device, or what is left to do before.
    """

    bundle: Path
    bundle_bytes: int = 0
    plans: dict[str, PlanEntry] = field(default_factory=dict)
    completion: Completion | None = None
    form: str = ""
    steps: list[Step] = field(default_factory=list)
    next_lines: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        done = self.completion
        return {
            "bundle": str(self.bundle),
            "bundle_bytes": self.bundle_bytes,
            "plans": {
                name: {"file": str(self.bundle / plan.file), "bytes": plan.size_bytes}
                for name, plan in self.plans.items()
            },
            "next": " ".join(line.strip() for line in self.next_lines),
            "form": None if done is None else self.form,
            "text": None if done is None else done.text,
            "acceptance_length": None if done is None else done.stats.acceptance_length,
            "steps": [
                {"step": one.name, "result": one.result, "seconds": round(one.seconds, 2)}
                for one in self.steps
            ],
        }


def make_engine(
    draft: Path,
    target: Path,
    out: Path,
    options: EngineOptions,
    report: Callable[[str], None] = lambda line: None,
) -> EngineReport:
    """Take a drafter and its target to a bundle with plans, checked and tried.

    Args:
        draft: drafter checkpoint.
        target: target checkpoint with tokenizer, run as a Hugging Face model.
        out: bundle folder; a bundle that is there is replaced.
        options: see `EngineOptions`.
        report: gets one line whenever something starts or is done.

    Raises:
        UnsupportedError: an SM cannot be built for, or lacks the precision; before any work.
        BundleError: the target has no chat template where one is wanted, or it refuses the prompt;
            before any work.
        BackendError: a package is missing; before any work.
        ParityError: the graph differs from the module, or the drafter changed the output.
        DraftrtError: whatever a step raises.
    """
    check_request(options)
    form = _settled(target, options, report) if options.with_run else options.form
    made = EngineReport(bundle=out)

    def step(name: str, work: Callable[[], T], tell: Callable[[T], str]) -> T:
        report(f"{name} ...")
        started = perf_counter()
        value = work()
        made.steps.append(Step(name=name, result=tell(value), seconds=perf_counter() - started))
        report(f"{name}: {made.steps[-1].result}")
        return value

    bundle = step("export", lambda: _export(draft, target, out, options, report), _say_bundle)
    made.bundle_bytes = _size(bundle)
    made.plans = step("plans", lambda: _build(out, options), _say_plans)
    made.next_lines = next_lines(Bundle.open(out), options.backend, options.sms)
    with _on_cpu(draft, target, out, options, report) as checked:
        step("onnxruntime", lambda: check_opens(checked), lambda count: f"{count} drafts a round")
        step("parity", lambda: _parity(out), _say_parity)
        if options.with_run:
            made.completion = step("run", lambda: _run(checked, target, options, form), _say_run)
            made.form = form.describe()
    return made


def _export(
    draft: Path, target: Path, out: Path, options: EngineOptions, report: Callable[[str], None]
) -> Bundle:
    from draftrt.export.options import ExportOptions
    from draftrt.export.pipeline import export_bundle

    chosen = ExportOptions(
        precision=options.precision,
        quantization=options.quantization,
        sms=options.sms if options.sms and min(options.sms) > min(DEFAULT_SMS) else (),
        prefer=options.prefer,
        sample_from_anchor=options.sample_from_anchor,
        family=options.family,
        ignore_keys=options.ignore_keys,
        force=True,
    )
    return Bundle.open(export_bundle(draft, target, out, chosen, report))


def check_request(options: EngineOptions) -> None:
    """Refuse what cannot succeed, before any work.

    Raises:
        UnsupportedError: an SM that the backend does not build for, or that lacks the precision.
        BackendError: a package is missing.
    """
    quantization = options.quantization.get(DRAFT, {})
    collect(request_findings(options.backend, options.sms, options.precision, quantization))
    backend_version(options.backend)
    packages = ["torch", "onnx", "onnxruntime", "polygraphy"]
    require(*packages, *(["transformers"] if options.with_run else []), what="this command")


def _settled(target: Path, options: EngineOptions, report: Callable[[str], None]) -> Form:
    """Return the form of the sample's prompt; one that the target's template refuses fails here."""
    requests = [asked(options.prompt)]
    with ChatTemplate(target) as template:
        form = options.form.settled(template, requests)
        prompt, variables = form.written(1, requests[0])
        if not isinstance(prompt, str):
            template.render(prompt, variables)
        for note in form.notes(template, requests):
            report(note)
    return form


def check_opens(path: Path) -> int:
    """Open a bundle's graph in ONNX Runtime and draft one block from zero features.

    Returns:
        Drafts of the block.

    Raises:
        BundleError: a file is not what the manifest says.
        ParityError: a drafted id is outside the target's vocabulary.
    """
    bundle = Bundle.open(path, verify=Verify.ALL)
    spec = bundle.drafter()
    with open_graph(bundle) as session:
        feeds: dict[str, NDArray[Any]] = {
            ANCHOR: np.zeros(1, np.int64),
            TARGET_HIDDEN: np.zeros((1, 1, spec.feature_size), np.float32),
            CONTEXT_LENGTH: np.zeros(1, np.int64),
        }
        ids = session.run(feeds)[DRAFT_IDS][0]
    vocab = spec.target_vocab_size or spec.input_vocab_size
    if ids.shape != (spec.num_draft_tokens,) or ids.min() < 0 or ids.max() >= vocab:
        raise ParityError(
            f"{path}: got draft ids {ids.tolist()}, expected {spec.num_draft_tokens} from 0 to "
            f"{vocab - 1}"
        )
    return len(ids)


def check_lossless(done: Completion, plain: Completion) -> None:
    """Demand that decoding with the drafter gave what the target gives alone.

    Raises:
        ParityError: another id, or another length.
    """
    if done.token_ids == plain.token_ids:
        return
    pairs = zip(done.token_ids, plain.token_ids, strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
    place = (
        f"{len(done.token_ids)} ids, expected {len(plain.token_ids)}"
        if same is None
        else f"id {same} is {done.token_ids[same]}, expected {plain.token_ids[same]}"
    )
    raise ParityError(
        f"the output with the drafter differs from the target's own: {place}",
        hint="speculation must not change greedy output; please report this pair",
    )


@contextmanager
def _on_cpu(
    draft: Path, target: Path, out: Path, chosen: EngineOptions, report: Callable[[str], None]
) -> Iterator[Path]:
    """Give a bundle that ONNX Runtime's CPU kernels can run."""
    from draftrt.export.config.keys import of_draft
    from draftrt.export.options import ExportOptions
    from draftrt.export.pipeline import export_bundle

    if chosen.precision is not Precision.BF16:
        yield out
        return
    report("no bf16 kernels on this CPU: the run uses an fp32 export of the drafter")
    with temporary_folder("fp32") as folder:
        options = ExportOptions(
            quantization=chosen.quantization,
            sms=tuple(chosen.sms),
            sample_from_anchor=chosen.sample_from_anchor,
            family=chosen.family,
            ignore_keys=of_draft(chosen.ignore_keys),
            target_graph=False,
        )
        yield export_bundle(draft, target, folder / "bundle", options, report)


def _build(out: Path, options: EngineOptions) -> dict[str, PlanEntry]:
    """Build the plans of the chosen graphs, one after the other, once all are known to fit."""
    bundle = Bundle.open(out)
    names = chosen_graphs(bundle, options.graph)
    check_fits(bundle, names, None)
    chosen = BuildOptions(backend=options.backend, sms=options.sms)
    return {name: build_plan(out, replace(chosen, graph=name)).entry for name in names}


def _parity(path: Path) -> PairReport:
    found = check_pair(path)
    if not found.is_same:
        raise ParityError("\n".join(as_text(found)), hint="docs/accuracy.md says how to find where")
    return found


def _run(path: Path, target: Path, options: EngineOptions, form: Form) -> Completion:
    """Decode the prompt with the drafter and without, and demand the same ids.

    The target runs in float32 in transformers: in 16 bits it would differ from itself where two
    logits are closer than the rounding of a block of another size.
    """
    wanted = DecodeOptions(max_tokens=options.max_tokens, schedule="all", reuse_prefix=False)
    with load(path, target=target, target_port="hf") as pair:
        (ids,) = form.encode(pair.encode, [asked(options.prompt)])
        done = pair.generate(ids, wanted)
        plain = pair.generate(ids, wanted, speculate=False)
    check_lossless(done, plain)
    return done


def _size(bundle: Bundle) -> int:
    return sum(entry.bytes for entry in bundle.manifest.files.values())


def _say_bundle(bundle: Bundle) -> str:
    entry = bundle.graph()
    kinds = [entry.precision.value, describe(entry.quantization), f"opset {entry.opset}"]
    return ", ".join([*filter(None, kinds), f"{_size(bundle) / 1e6:.1f} MB"])


def _say_plans(plans: dict[str, PlanEntry]) -> str:
    first = next(iter(plans.values()))
    sms = ", ".join(str(sm) for sm in first.sms)
    sizes = ", ".join(f"{name} {plan.size_bytes / 1e6:.1f} MB" for name, plan in plans.items())
    return f"{first.backend} {first.backend_version}, SM {sms}, {sizes}"


def _say_parity(found: PairReport) -> str:
    assert found.draft is not None
    rounds, precision = len(found.draft.rounds), found.draft.precision.value
    target = ", the target too" if found.target is not None else ""
    return f"same as PyTorch over {rounds} rounds, {precision}{target}"


def _say_run(done: Completion) -> str:
    length = done.stats.acceptance_length
    return f"{len(done.token_ids)} tokens, the target's own; acceptance length {length:.2f}"
