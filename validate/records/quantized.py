"""Recorded answers of quantised checkpoints: their weights, and what the model computes with them.

A target's graph is made by the export that users run and fed by the runtime's own target, its
products computed as the graph says. The kernels that a user's run has round activations to int8;
how far those are is measured when it is asked for, and not judged.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftrt.backends import ONNXRUNTIME
from draftrt.compare.arrays import Finding, compare_ids, compare_values
from draftrt.files import temporary_folder
from draftrt.lifecycle import Closing
from draftrt.signature import Signature, cache_specs, state_specs
from draftrt.spec import DecoderSpec, Precision
from draftrt.tolerances import Limit
from draftrt.validate.records.files import RecordError

if TYPE_CHECKING:
    from draftrt.export.checkpoint.tensors import TensorRef
    from draftrt.export.models.decoder import Decoder
    from draftrt.runtime.targets.graph import GraphTarget

ANSWERS, WEIGHTS, TARGET_FOLDER = "expected.npz", "weights.npz", "target"
TENSORS_FILE = "model.safetensors"
AS_RUN = "as run"  # on the runtime's own kernels
ROUNDED = 2.4e-7  # of a weight: two multiplications in float32, in either order
SUMS, PLACED_SUMS = 1e-7, 1e-5  # of the sum of magnitudes
LOGITS = Limit(atol=1e-4, reason="correct float32 paths agree to 2e-5 on the published cases")
EXACT = Limit(reason="ids are compared exactly")
MEASURED = Limit(atol=1e30, agreement=0.0, reason="measured, not judged")
Arrays = Mapping[str, NDArray[Any]]


def is_quantized(folder: Path) -> bool:
    """Whether a folder is a case of a quantised target, or of tensors alone."""
    if (folder / "draft").exists():
        return False
    return (
        (folder / TARGET_FOLDER).is_dir()
        and any(name.startswith(("w.", "c.")) for name in _names(folder))
    ) or ((folder / TENSORS_FILE).is_file() and bool(_names(folder)))


def _names(folder: Path) -> list[str]:
    found: list[str] = []
    for file in (ANSWERS, WEIGHTS):
        try:
            with zipfile.ZipFile(folder / file) as archive:
                found += archive.namelist()
        except (OSError, zipfile.BadZipFile):
            continue
    return found


def check_quantized(
    folder: Path, backends: Sequence[str], report: Callable[[str], None] = lambda line: None
) -> tuple[dict[str, dict[str, Finding]], int]:
    """Check a quantised target, or tensors alone.

    Args:
        folder: the case.
        backends: which of ``pytorch``, ``onnxruntime`` and `AS_RUN` are compared.
        report: gets one line a step.

    Returns:
        Backend to (array to finding), and the number of prompts.

    Raises:
        DraftrtError: the checkpoint cannot be read or exported, or the record is ill-formed.
    """
    arrays = read_answers(folder)
    checkpoint = folder / TARGET_FOLDER
    if not checkpoint.is_dir():
        return {name: _tensor_findings(folder, arrays) for name in backends[:1]}, 0
    weights = weight_findings(checkpoint, arrays)
    prompts = sorted({name.partition(".")[0] for name in arrays if name.endswith(".ids")})
    findings: dict[str, dict[str, Finding]] = {}
    for name in backends:
        own = LOGITS if name != AS_RUN else MEASURED
        answers = _answers(checkpoint, arrays, prompts, name, own, report) if prompts else {}
        findings[name] = {**({} if name == AS_RUN else weights), **answers}
    return findings, len(prompts)


def read_weights(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the recorded weights of a drafter's case.

    Raises:
        RecordError: they cannot be read.
    """
    return read_answers(folder, (WEIGHTS,))


def read_answers(
    folder: Path, files: Sequence[str] = (ANSWERS, WEIGHTS)
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a case.

    Raises:
        RecordError: there are none, or they cannot be read.
    """
    found: dict[str, NDArray[Any]] = {}
    for file in files:
        path = folder / file
        if not path.is_file():
            continue
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                found |= {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            raise RecordError(
                f"{path}: cannot be read as an npz file of plain arrays: {error!s:.200}"
            ) from error
    if not found:
        raise RecordError(f"{folder}: no {' and no '.join(files)}")
    return found


def weight_findings(checkpoint: Path, arrays: Arrays) -> dict[str, Finding]:
    """Compare dequantised weights and their checksums with the recorded ones.

    Raises:
        DraftrtError: the checkpoint cannot be read.
    """
    from draftrt.export.checkpoint.safetensors import read_headers, read_tensors

    tensors = read_tensors(checkpoint)
    is_rounded = any(
        "scale" in name.rpartition(".")[2] and ref.dtype == "float32" and "input" not in name
        for name, ref in read_headers(checkpoint).items()
    )
    found = {}
    for name, want in arrays.items():
        kind, _, module = name.partition(".")
        if kind == "w":
            found[name] = _weight(want, tensors.get(f"{module}.weight"), exact=not is_rounded)
        elif kind == "c":
            found[name] = _checksums(want, tensors.get(f"{module}.weight"))
    return found


def _weight(want: NDArray[Any], ref: TensorRef | None, *, exact: bool) -> Finding:
    got = None if ref is None else ref.read().numpy()
    finding = compare_values("weight", want, got, MEASURED)
    if not finding or got is None:
        return finding
    allowed = 0.0 if exact else ROUNDED
    wrong = np.abs(got - want) > allowed * np.abs(want)
    if not wrong.any():
        return finding
    row, column = np.argwhere(wrong)[0][-2:].tolist()
    problem = f"{int(wrong.sum())} weights differ, the first in row {row}, column {column}"
    return Finding(output="weight", is_same=False, worst=finding.worst, problem=problem)


def _checksums(want: NDArray[Any], ref: TensorRef | None) -> Finding:
    """Compare the sum, that of magnitudes, and one that knows places."""
    if ref is None:
        return compare_values("checksums", want, None, EXACT)
    content = ref.read().numpy().astype(np.float64)
    rows, columns = np.arange(content.shape[0])[:, None], np.arange(content.shape[1])
    placed = (content * ((31 * rows + 17 * columns) % 101)).sum()
    got = np.array([content.sum(), np.abs(content).sum(), placed])
    size = float(want[1])
    gaps = np.abs(got - want) / np.array([SUMS, SUMS, PLACED_SUMS])
    is_same = bool((gaps <= size).all())
    problem = "" if is_same else f"got {got.tolist()}, expected {want.tolist()}"
    return Finding(
        output="checksums", is_same=is_same, worst=float(np.abs(got - want).max()), problem=problem
    )


def _tensor_findings(folder: Path, arrays: Arrays) -> dict[str, Finding]:
    """Compare tensors without a model: the experts of gpt-oss."""
    from draftrt.errors import collect
    from draftrt.export.checkpoint.quantized.read import decode
    from draftrt.export.checkpoint.safetensors import read_headers

    config = {"quantization_config": {"quant_method": "mxfp4"}}
    decoded = decode(folder, config, read_headers(folder))
    collect(list(decoded.findings))
    return {
        f"w.{name}": _weight(want, decoded.tensors.get(name), exact=True)
        for name, want in arrays.items()
    }


def _answers(
    checkpoint: Path,
    arrays: Arrays,
    prompts: Sequence[str],
    backend: str,
    limit: Limit,
    report: Callable[[str], None],
) -> dict[str, Finding]:
    from draftrt.export.checkpoint.decoder import read_decoder
    from draftrt.export.checkpoint.target import read_target

    spec = read_decoder(read_target(checkpoint))
    context = max(
        len(arrays[f"{name}.ids"]) + len(arrays.get(f"{name}.greedy", ())) for name in prompts
    )
    taps = tuple(dict.fromkeys((-1, 0, spec.num_layers - 1)))
    ids = MEASURED if limit is MEASURED else EXACT
    found: dict[str, Finding] = {}
    with temporary_folder("golden") as scratch:
        opened, norm = _open(scratch, checkpoint, spec, taps, context, backend, report)
        with closing(opened) as target:
            for name in prompts:
                for key, finding in _prompt(
                    target, name, arrays, (taps, norm, spec), limit, ids
                ).items():
                    found[f"{name}.{key}"] = finding
    return found


def _prompt(
    target: GraphTarget,
    name: str,
    arrays: Arrays,
    shape: tuple[tuple[int, ...], NDArray[np.float32], DecoderSpec],
    limit: Limit,
    ids: Limit,
) -> dict[str, Finding]:
    """Feed a prompt, then decode greedily behind it."""
    found = {}
    taps, norm, spec = shape
    target.rollback(0)
    rows = target.verify(arrays[f"{name}.ids"].astype(np.int64), want_logits=True)
    assert rows.logits is not None
    if (want := arrays.get(f"{name}.logits")) is not None:
        found["logits"] = compare_values("logits", want, rows.logits[-len(want) :], limit)
    if (want := arrays.get(f"{name}.hidden")) is not None:
        features = dict(zip(taps, np.split(rows.features[0], len(taps), axis=1), strict=True))
        last = features[spec.num_layers - 1].astype(np.float64)
        scale = np.sqrt((last**2).mean(axis=1, keepdims=True) + spec.rms_norm_eps)
        got = np.stack([features[-1], features[0], last / scale * norm])
        found["hidden"] = compare_values("hidden", want, got, limit)
    if (want := arrays.get(f"{name}.greedy")) is not None:
        made = [int(rows.token_ids[-1])]
        while len(made) < len(want):
            made.append(int(target.verify(np.array(made[-1:], np.int64)).token_ids[-1]))
        found["greedy"] = compare_ids("greedy", want, np.array(made), ids)
    return found


def _open(
    folder: Path,
    checkpoint: Path,
    spec: DecoderSpec,
    taps: tuple[int, ...],
    context: int,
    backend: str,
    report: Callable[[str], None],
) -> tuple[GraphTarget, NDArray[np.float32]]:
    """Return a target of the checkpoint on a backend, and the weight of its last norm."""
    from draftrt.export.models.signature import target_signature
    from draftrt.export.options import ExportOptions
    from draftrt.export.weights.placement import place_target
    from draftrt.export.weights.storage import weight_files
    from draftrt.runtime.targets.graph import GraphTarget

    options = ExportOptions(precision=Precision.FP32, max_context=context)
    with weight_files(folder, options.weights) as files:
        weights = place_target(spec, checkpoint, options, context, files)
        norm = weights.tensors["model.norm.weight"].read().numpy()
        if backend not in (ONNXRUNTIME, AS_RUN):
            from draftrt.export.models.decoder import Decoder

            contents = {name: one.read() for name, one in weights.tensors.items()}
            module = Decoder(spec, contents, taps=taps)
            signature = target_signature(spec, taps, Precision.FP32, context)
            return GraphTarget(_ModuleSession(module, signature), context), norm
        from draftrt.export.write_graphs import write_target_graph
        from draftrt.runtime.backends.ort import OrtSession

        entry = write_target_graph(spec, folder, taps, options, report, context, weights)
    is_exact = backend != AS_RUN
    session = OrtSession(folder / entry.file, entry.signature, is_exact=is_exact)
    return GraphTarget(session, context), norm


class _ModuleSession(Closing):
    """A target's module as a session of its graph: it keeps the caches and states."""

    def __init__(self, module: Decoder, signature: Signature) -> None:
        self._module = module.eval()
        self.signature = signature
        self._held = {
            one.name: np.zeros([int(size) for size in one.shape], one.dtype)
            for one in (*cache_specs(signature), *state_specs(signature))
        }

    def run(
        self, feeds: Arrays, *, rows: int | None = None, unwanted: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Compute one call."""
        from draftrt.export.check.compare import run_module

        given = {**feeds, **self._held}
        ordered = {one.name: given[one.name] for one in self.signature.inputs}
        found = dict(run_module(self._module, ordered, self.signature.output_names()))
        for one in self.signature.outputs:
            if place := one.alias or one.becomes:
                self._held[place] = found[one.name]
        return found

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
