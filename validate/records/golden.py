"""Golden cases against the exported graph on ONNX Runtime and against the PyTorch module.

The graph is made by the export that users run, with every extra output, and fed round by round
through the runtime. Nothing is learnt from the expected arrays but the target's two tables.

The rounds of a golden case on something that drafts, and what they have to do with the record.

Float32 answers must be the recorded ones. Those of 16-bit graphs come from rounded weights: there
it is counted how often the choice is still the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import ONNXRUNTIME
from draftrt.compare.arrays import Finding, compare_ids, compare_top, compare_values
from draftrt.compare.measures import Judge, Measure
from draftrt.errors import DraftrtError, SpecError
from draftrt.files import temporary_folder
from draftrt.signature import ANCHOR, CONTEXT_LENGTH, TARGET_HIDDEN
from draftrt.spec import DrafterSpec, Precision, TargetSpec
from draftrt.tolerances import RECORD, Limit, golden_limit, limit_of
from draftrt.validate.records.cases import ID_ARRAYS, CaseRound, GoldenCase, read_case
from draftrt.validate.records.quantized import (
    AS_RUN,
    LOGITS,
    MEASURED,
    WEIGHTS,
    check_quantized,
    is_quantized,
    read_weights,
    weight_findings,
)
from draftrt.validate.rounds.module import ReferenceRounds

if TYPE_CHECKING:
    from draftrt.export.checkpoint.drafter import LoadedDrafter
    from draftrt.export.checkpoint.target import TargetCheckpoint
    from draftrt.export.models.drafter import Drafter


PYTORCH = "pytorch"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """What the check of one case showed.

    Attributes:
        name: the case's folder name.
        num_rounds: rounds in the record.
        limit: what its arrays may differ by.
        findings: backend to (``rN.array`` to finding); empty where the case could not be checked.
        error: why it could not be checked; None when it was.
    """

    name: str
    num_rounds: int
    limit: Limit
    findings: Mapping[str, Mapping[str, Finding]]
    error: DraftrtError | None = None

    @property
    def verdict(self) -> str:
        """``same``, ``different`` or ``unchecked``."""
        if self.error is not None:
            return "unchecked"
        is_same = all(all(named.values()) for named in self.findings.values())
        return "same" if is_same else "different"


def check_cases(
    folders: Sequence[Path],
    *,
    backends: Sequence[str] = (PYTORCH, ONNXRUNTIME),
    precision: Precision = Precision.FP32,
    draft: Path | None = None,
    target: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[CaseReport]:
    """Check cases one by one; one that cannot be checked does not stop the others.

    Args:
        folders: the cases.
        backends: which of `PYTORCH` and `ONNXRUNTIME` are compared with the record; with `AS_RUN`,
            what the runtime's own kernels make of it is measured too.
        precision: element type of the graph.
        draft: checkpoint of a case that holds only the hashes of its drafter.
        target: checkpoint of a case that holds only the hashes of its target's tables.
        report: gets one line a step.
    """
    for folder in folders:
        limit, num_rounds = golden_limit(folder.name, None), 0
        try:
            if is_quantized(folder):
                findings, num_rounds = check_quantized(folder, backends, report)
                yield CaseReport(
                    name=folder.resolve().name,
                    num_rounds=num_rounds,
                    limit=LOGITS,
                    findings=findings,
                )
                continue
            case = read_case(folder, draft)
            limit = golden_limit(case.name, case.tolerance)
            findings = check_case(case, limit, backends, precision, target, report)
            if (folder / WEIGHTS).is_file():
                told = weight_findings(case.draft, read_weights(folder))
                findings = {name: {**told, **found} for name, found in findings.items()}
            error = None
        except DraftrtError as failure:
            findings, error = {}, failure
        yield CaseReport(
            name=folder.resolve().name,
            num_rounds=0 if error else len(case.rounds),
            limit=limit,
            findings=findings,
            error=error,
        )


def check_case(
    case: GoldenCase,
    limit: Limit,
    backends: Sequence[str],
    precision: Precision = Precision.FP32,
    target: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, Finding]]:
    """Run one case on each backend; return backend to (``rN.array`` to finding).

    Raises:
        DraftrtError: the drafter cannot be read or exported, or does not fit the case.
    """
    from draftrt.export.checkpoint.drafter import load_drafter

    loaded = load_drafter(case.draft, case_target(case, target), **case.stated)
    check_width(case, loaded.spec)
    findings = {}
    if PYTORCH in backends:
        draft = module_drafter(loaded, precision, context_of(case, loaded.spec))
        findings[PYTORCH] = compare_case(case, draft, loaded.spec, limit)
    for name in (one for one in (ONNXRUNTIME, AS_RUN) if one in backends):
        most = limit if name == ONNXRUNTIME else MEASURED
        findings[name] = _check_graph(case, loaded, most, precision, report)
    return findings


def case_target(case: GoldenCase, folder: Path | None = None) -> TargetCheckpoint:
    """Return the target of a case: its two sizes, and the tables the drafter borrows.

    The record does not state the target's hidden size; the drafter's own statement is taken, and
    the width of the features is checked against it.

    Args:
        case: the record.
        folder: the target's checkpoint, for a record that holds only the hashes of its tables.

    Raises:
        RecordError: tables are missing, or not those of the record.
    """
    import torch

    from draftrt.export.checkpoint.drafter import load_drafter
    from draftrt.export.checkpoint.target import EMBED, HEAD, TargetCheckpoint
    from draftrt.export.checkpoint.tensors import from_tensor
    from draftrt.validate.records.cases import recorded_tables

    drafter = load_drafter(case.draft, None, **case.stated).spec
    names = {"embed_tokens": EMBED, "lm_head": HEAD}
    tables = {
        names[name]: from_tensor(name, torch.from_numpy(array))
        for name, array in case.tables.items()
    }
    tables |= recorded_tables(case, folder)
    embedding = tables.get(EMBED)
    sources = dict.fromkeys(TargetSpec.__dataclass_fields__, "case.json")
    del sources["sources"]
    spec = TargetSpec(
        architecture="",
        model_type=str(case.target_config.get("model_type", "")),
        num_layers=case.num_target_layers,
        hidden_size=drafter.target_hidden_size,
        vocab_size=case.target_vocab_size,
        table_rows=None if embedding is None else embedding.shape[0],
        tie_word_embeddings=False,
        eos_token_ids=(),
        sources={**sources, "hidden_size": "the drafter's config", "table_rows": "expected.npz"},
    )
    return TargetCheckpoint(spec, tables, text=case.target_config)


def _check_graph(
    case: GoldenCase,
    loaded: LoadedDrafter,
    limit: Limit,
    precision: Precision,
    report: Callable[[str], None],
) -> dict[str, Finding]:
    from draftrt.export.models.signature import EXTRA_OUTPUTS
    from draftrt.export.options import ExportOptions
    from draftrt.export.write_graphs import write_draft_graph
    from draftrt.runtime.backends.ort import OrtSession
    from draftrt.runtime.decoding.drafter import DraftSession

    options = ExportOptions(
        precision=precision,
        max_context=context_of(case, loaded.spec),
        extra_outputs=EXTRA_OUTPUTS,
    )
    with temporary_folder("golden") as folder:
        entry = write_draft_graph(loaded, folder, options, report)
        file, is_exact = folder / entry.file, limit is not MEASURED
        with OrtSession(file, entry.signature, is_exact=is_exact) as session:
            return compare_case(case, DraftSession(loaded.spec, session).draft, loaded.spec, limit)


OUTPUT_OF = {"tokens": "draft_ids", "draft_ids": "draft_vocab_ids"}  # others keep their name
EXACT = Limit(reason="ids are compared exactly")
MIN_CONTEXT = 64
JUDGED = ("draft_ids", "hidden", "base_logits", "logits", "confidence")
Draft = Callable[[int, NDArray[np.float32]], Mapping[str, NDArray[Any]]]


def check_width(case: GoldenCase, spec: DrafterSpec) -> None:
    """Refuse a drafter that reads features of another width than the recorded ones.

    Raises:
        SpecError: names both widths.
    """
    width = case.rounds[0].target_hidden.shape[2]
    if width != spec.feature_size:
        raise SpecError(
            f"{case.name}: recorded target_hidden has width {width}, expected {spec.feature_size} "
            f"({len(spec.target_layer_ids)} taps of {spec.target_hidden_size})",
            hint="the record belongs to another drafter",
        )


def context_of(case: GoldenCase, spec: DrafterSpec) -> int:
    """Return cache rows that hold the whole record and a block behind it."""
    rows = sum(one.target_hidden.shape[1] for one in case.rounds) + spec.block_size
    return max(MIN_CONTEXT, int(rows))


def module_drafter(loaded: LoadedDrafter, precision: Precision, context: int) -> Draft:
    """Return the PyTorch module of a checkpoint as something that drafts one sequence."""
    from draftrt.export.check.reference import reference_module
    from draftrt.export.models.signature import EXTRA_OUTPUTS
    from draftrt.export.weights.tensors import draft_tensors

    tensors = draft_tensors(loaded.spec, loaded.tensors, precision, context)
    module = reference_module(loaded.spec, tensors, extra_outputs=EXTRA_OUTPUTS)
    return drafter_of(module, precision, context)


def drafter_of(module: Drafter, precision: Precision, context: int) -> Draft:
    """Return a PyTorch module as something that drafts one sequence.

    Args:
        module: the module.
        precision: element type of its caches.
        context: their rows.
    """
    rounds, length = ReferenceRounds(module, precision, context), 0

    def draft(anchor: int, features: NDArray[np.float32]) -> Mapping[str, NDArray[Any]]:
        nonlocal length
        feeds: dict[str, NDArray[Any]] = {
            ANCHOR: np.array([anchor], np.int64),
            TARGET_HIDDEN: features,
            CONTEXT_LENGTH: np.array([length], np.int64),
        }
        length += features.shape[1]
        return rounds.run(feeds)

    return draft


def compare_case(
    case: GoldenCase, draft: Draft, spec: DrafterSpec, limit: Limit
) -> dict[str, Finding]:
    """Draft the rounds of a case and compare; returns ``rN.array`` to finding.

    Args:
        case: the record.
        draft: takes an anchor and the features of the new rows, and gives the outputs.
        spec: the drafter.
        limit: what arrays may differ by; ids are compared exactly.
    """
    findings: dict[str, Finding] = {}
    for index, one in enumerate(case.rounds):
        outputs = draft(one.anchor, one.target_hidden)
        for key, want in _compared(one).items():
            got = outputs.get(OUTPUT_OF.get(key, key))
            findings[f"r{index}.{key}"] = _judge(key, want, got, limit, spec)
        if "top_ids" in one.expected:
            findings[f"r{index}.top_logits"] = _judge_top(one, outputs.get("logits"), limit)
    return findings


def _compared(one: CaseRound) -> dict[str, NDArray[Any]]:
    """Return the recorded arrays that an output is compared with as a whole."""
    tops = ("top_ids", "top_logits")
    return {key: array for key, array in one.expected.items() if key not in tops}


def _judge_top(one: CaseRound, logits: NDArray[Any] | None, limit: Limit) -> Finding:
    ids, want = one.expected["top_ids"], one.expected["top_logits"]
    return compare_top("top_logits", ids, want, None if logits is None else logits[0], limit)


def compare_rounded(
    case: GoldenCase, draft: Draft, spec: DrafterSpec, precision: Precision
) -> list[Finding | Measure]:
    """Draft the rounds of a case in 16 bits; return how close ids, rows and logits stay.

    Args:
        case: the record, in float32.
        draft: as for `compare_case`.
        spec: the drafter.
        precision: of the graph, not fp32; its entries of ``record`` are the limits.
    """
    names = {OUTPUT_OF.get(key, key) for one in case.rounds for key in _compared(one)}
    limits = {name: limit_of(RECORD, precision, name) for name in JUDGED if name in names}
    judge = Judge(limits, is_sequential=spec.markov is not None or spec.selector is not None)
    for one in case.rounds:
        want = {
            OUTPUT_OF.get(key, key): _kept(key, array, spec)[None]
            for key, array in _compared(one).items()
        }
        judge(want, draft(one.anchor, one.target_hidden))
    return [*judge.shares().values(), *judge.measures()]


def _judge(
    key: str, want: NDArray[Any], got: NDArray[Any] | None, limit: Limit, spec: DrafterSpec
) -> Finding:
    row = None if got is None else got[0]  # the graph's batch axis
    if key in ID_ARRAYS:
        return compare_ids(key, want, row, limit if limit is MEASURED else EXACT)
    return compare_values(key, _kept(key, want, spec), row, limit)


def _kept(key: str, want: NDArray[Any], spec: DrafterSpec) -> NDArray[Any]:
    """Return a recorded array without the padded ids, which a graph leaves out."""
    if key not in ("logits", "base_logits") or not spec.num_padded_rows:
        return want
    kept = spec.draft_vocab_size - spec.num_padded_rows
    is_padded = want.shape[1] == spec.draft_vocab_size and np.isneginf(want[:, kept:]).all()
    return want[:, :kept] if is_padded else want
