"""Golden cases against the exported graph on ONNX Runtime and against the PyTorch module.

The graph is made by the export that users run, with every extra output, and fed round by round
through the runtime. Nothing is learnt from the expected arrays but the target's two tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftrt.backends import ONNXRUNTIME
from draftrt.errors import DraftrtError
from draftrt.spec import Precision, TargetSpec
from draftrt.tolerances import Limit, golden_limit
from draftrt.validate.compare.arrays import Finding
from draftrt.validate.records.cases import GoldenCase, read_case
from draftrt.validate.records.golden_rounds import (
    check_width,
    compare_case,
    context_of,
    module_drafter,
)

if TYPE_CHECKING:
    from draftrt.export.checkpoint.drafter import LoadedDrafter
    from draftrt.export.checkpoint.target import Target

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
        backends: which of `PYTORCH` and `ONNXRUNTIME` are compared with the record.
        precision: element type of the graph.
        draft: checkpoint of a case that holds only the hashes of its drafter.
        target: checkpoint of a case that holds only the hashes of its target's tables.
        report: gets one line a step.
    """
    for folder in folders:
        limit = golden_limit(folder.name, None)
        try:
            case = read_case(folder, draft)
            limit = golden_limit(case.name, case.tolerance)
            findings = check_case(case, limit, backends, precision, target, report)
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

    loaded = load_drafter(case.draft, case_target(case, target))
    check_width(case, loaded.spec)
    findings = {}
    if PYTORCH in backends:
        draft = module_drafter(loaded, precision, context_of(case, loaded.spec))
        findings[PYTORCH] = compare_case(case, draft, loaded.spec, limit)
    if ONNXRUNTIME in backends:
        findings[ONNXRUNTIME] = _check_graph(case, loaded, limit, precision, report)
    return findings


def case_target(case: GoldenCase, folder: Path | None = None) -> Target:
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
    from draftrt.export.checkpoint.target import EMBED, HEAD, Target
    from draftrt.export.checkpoint.tensors import from_tensor
    from draftrt.validate.records.record_tables import recorded_tables

    drafter = load_drafter(case.draft, None).spec
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
    return Target(spec, tables, text=case.target_config)


def _check_graph(
    case: GoldenCase,
    loaded: LoadedDrafter,
    limit: Limit,
    precision: Precision,
    report: Callable[[str], None],
) -> dict[str, Finding]:
    from draftrt.export.draft_graph import write_draft_graph
    from draftrt.export.models.outputs import EXTRA_OUTPUTS
    from draftrt.export.options import ExportOptions
    from draftrt.runtime.backends.ort import OrtSession
    from draftrt.runtime.decoding.drafter import Drafter

    options = ExportOptions(
        precision=precision,
        max_context=context_of(case, loaded.spec),
        extra_outputs=EXTRA_OUTPUTS,
    )
    with tempfile.TemporaryDirectory(prefix="draftrt-golden-") as name:
        entry = write_draft_graph(loaded, Path(name), options, report)
        with OrtSession(Path(name) / entry.file, entry.signature) as session:
            return compare_case(case, Drafter(loaded.spec, session).draft, loaded.spec, limit)
