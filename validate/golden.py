"""Golden cases against the exported graph on ONNX Runtime and against the PyTorch module.

The graph is made by the export that users run, with every extra output, and fed round by round
through the runtime. Nothing is learnt from the expected arrays but the target's two tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import DraftrtError, SpecError
from draftrt.spec import DrafterSpec, Precision, TargetSpec
from draftrt.validate.compare import Finding, compare_ids, compare_values
from draftrt.validate.records import ID_ARRAYS, GoldenCase, read_case
from draftrt.validate.reference import ReferenceRounds
from draftrt.validate.tolerances import Limit, golden_limit

if TYPE_CHECKING:
    from draftrt.export.load import LoadedDrafter
    from draftrt.export.target import Target

ONNXRUNTIME, PYTORCH = "onnxruntime", "pytorch"
OUTPUT_OF = {"tokens": "draft_ids", "draft_ids": "draft_vocab_ids"}  # others keep their name
EXACT = Limit(reason="ids are compared exactly")
MIN_CONTEXT = 64

Draft = Callable[[int, NDArray[np.float32]], Mapping[str, NDArray[Any]]]


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
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[CaseReport]:
    """Check cases one by one; one that cannot be checked does not stop the others.

    Args:
        folders: the cases.
        backends: which of `PYTORCH` and `ONNXRUNTIME` are compared with the record.
        precision: element type of the graph.
        report: gets one line a step.
    """
    for folder in folders:
        limit = golden_limit(folder.name, None)
        try:
            case = read_case(folder)
            limit = golden_limit(case.name, case.tolerance)
            findings = check_case(case, limit, backends, precision, report)
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
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, Finding]]:
    """Run one case on each backend; return backend to (``rN.array`` to finding).

    Raises:
        DraftrtError: the drafter cannot be read or exported, or does not fit the case.
    """
    from draftrt.export.load import load_drafter

    loaded = load_drafter(case.draft, case_target(case))
    _check_width(case, loaded.spec)
    findings = {}
    if PYTORCH in backends:
        draft = _module_drafter(loaded, precision, _context(case, loaded.spec))
        findings[PYTORCH] = _compare(case, draft, loaded.spec, limit)
    if ONNXRUNTIME in backends:
        findings[ONNXRUNTIME] = _check_graph(case, loaded, limit, precision, report)
    return findings


def case_target(case: GoldenCase) -> Target:
    """Return the target of a case: its two sizes, and the tables the drafter borrows.

    The record does not state the target's hidden size; the drafter's own statement is taken, and
    the width of the features is checked against it.
    """
    from draftrt.export.checkpoint import from_array
    from draftrt.export.load import load_drafter
    from draftrt.export.target import EMBED, HEAD, Target

    drafter = load_drafter(case.draft, None).spec
    names = {"embed_tokens": EMBED, "lm_head": HEAD}
    tables = {names[name]: from_array(name, array) for name, array in case.tables.items()}
    embedding = case.tables.get("embed_tokens")
    sources = dict.fromkeys(TargetSpec.__dataclass_fields__, "case.json")
    del sources["sources"]
    spec = TargetSpec(
        architecture="",
        model_type="",
        num_layers=case.num_target_layers,
        hidden_size=drafter.target_hidden_size,
        vocab_size=case.target_vocab_size,
        table_rows=None if embedding is None else embedding.shape[0],
        tie_word_embeddings=False,
        eos_token_ids=(),
        sources={**sources, "hidden_size": "the drafter's config", "table_rows": "expected.npz"},
    )
    return Target(spec, tables)


def _check_width(case: GoldenCase, spec: DrafterSpec) -> None:
    width = case.rounds[0].target_hidden.shape[2]
    if width != spec.feature_size:
        raise SpecError(
            f"{case.name}: recorded target_hidden has width {width}, expected {spec.feature_size} "
            f"({len(spec.target_layer_ids)} taps of {spec.target_hidden_size})",
            hint="the record belongs to another drafter",
        )


def _context(case: GoldenCase, spec: DrafterSpec) -> int:
    """Return cache rows that hold the whole record and a block behind it."""
    rows = sum(one.target_hidden.shape[1] for one in case.rounds) + spec.block_size
    return max(MIN_CONTEXT, int(rows))


def _module_drafter(loaded: LoadedDrafter, precision: Precision, context: int) -> Draft:
    from draftrt.export.assemble import graph_tensors, reference_module
    from draftrt.export.drafter import EXTRA_OUTPUTS

    tensors = graph_tensors(loaded.spec, loaded.tensors, precision, context)
    module = reference_module(loaded.spec, tensors, extra_outputs=EXTRA_OUTPUTS)
    rounds, length = ReferenceRounds(module, precision, context), 0

    def draft(anchor: int, features: NDArray[np.float32]) -> Mapping[str, NDArray[Any]]:
        nonlocal length
        feeds: dict[str, NDArray[Any]] = {
            "anchor": np.array([anchor], np.int64),
            "target_hidden": features,
            "context_length": np.array([length], np.int64),
        }
        length += features.shape[1]
        return rounds.run(feeds)

    return draft


def _check_graph(
    case: GoldenCase,
    loaded: LoadedDrafter,
    limit: Limit,
    precision: Precision,
    report: Callable[[str], None],
) -> dict[str, Finding]:
    from draftrt.export.drafter import EXTRA_OUTPUTS
    from draftrt.export.pipeline import ExportOptions, write_draft_graph
    from draftrt.runtime.drafter import Drafter
    from draftrt.runtime.ort import OrtSession

    options = ExportOptions(
        precision=precision,
        max_context=_context(case, loaded.spec),
        extra_outputs=EXTRA_OUTPUTS,
    )
    with tempfile.TemporaryDirectory(prefix="draftrt-golden-") as name:
        entry = write_draft_graph(loaded, Path(name), options, report)
        with OrtSession(Path(name) / entry.file, entry.signature) as session:
            return _compare(case, Drafter(loaded.spec, session).draft, loaded.spec, limit)


def _compare(case: GoldenCase, draft: Draft, spec: DrafterSpec, limit: Limit) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for index, one in enumerate(case.rounds):
        outputs = draft(one.anchor, one.target_hidden)
        for key, want in one.expected.items():
            got = outputs.get(OUTPUT_OF.get(key, key))
            findings[f"r{index}.{key}"] = _judge(key, want, got, limit, spec)
    return findings


def _judge(
    key: str, want: NDArray[Any], got: NDArray[Any] | None, limit: Limit, spec: DrafterSpec
) -> Finding:
    row = None if got is None else got[0]  # the graph's batch axis
    if key in ID_ARRAYS:
        return compare_ids(key, want, row, EXACT)
    if key in ("logits", "base_logits") and spec.num_padded_rows:
        # The graph leaves out the padded ids, which the record gives as minus infinity.
        kept = spec.draft_vocab_size - spec.num_padded_rows
        if want.shape[1] == spec.draft_vocab_size and np.isneginf(want[:, kept:]).all():
            want = want[:, :kept]
    return compare_values(key, want, row, limit)
