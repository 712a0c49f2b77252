"""The gate for a target's graph: against its PyTorch module, whole or a few layers of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftrt.errors import ExportError
from draftrt.export.check.compare import TOLERANCE, open_session, relative_gap
from draftrt.export.check.feeds import random_caches
from draftrt.export.check.layer_samples import Sample, compare_samples, rows_for, samples
from draftrt.export.check.lazy_weights import LazyWeights
from draftrt.export.check.one_layer import feature_sources
from draftrt.export.check.same_layers import check_same_layers
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.graph.float32 import widened, write_float32_twin
from draftrt.export.graph.layers import state_name
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.shapes import PREFIX as ROPE
from draftrt.export.models.shapes import decoder_shapes
from draftrt.export.weights.overflow import is_finite, overflow_in
from draftrt.export.weights.tensors import LM_HEAD, TABLE
from draftrt.spec import DecoderSpec, Precision, Profile


def check_target(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    profile: Profile,
    max_context: int,
    *,
    scratch: Path | None = None,
) -> str:
    """Run prefill, steps and a long context on ONNX Runtime against the module; return a line.

    Args:
        path: ONNX file.
        spec: the target's layers.
        tensors: its weights.
        taps: layers whose results are the features.
        precision: of the graph.
        profile: operators of the graph.
        max_context: rows of each cache.
        scratch: takes the twin of a bf16 graph; None for the folder of ``path``.

    Raises:
        ExportError: logits, features or caches differ beyond the precision's tolerance.
    """
    if precision is not Precision.BF16:
        return _compare(path, spec, tensors, taps, precision, profile, max_context)
    with tempfile.TemporaryDirectory(dir=scratch or path.parent, prefix=".twin-") as folder:
        twin = Path(folder) / path.name
        write_float32_twin(path, twin)
        wide = {name: widened(tensor) for name, tensor in tensors.items()}
        line = _compare(twin, spec, wide, taps, Precision.FP32, profile, max_context)
    return f"{line} (bf16 graph as its float32 twin)"


def _compare(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    profile: Profile,
    max_context: int,
) -> str:
    contents = {name: tensor.read() for name, tensor in tensors.items()}
    module = Decoder(spec, contents, taps=taps, profile=profile).eval()
    session = open_session(path)
    names = [item.name for item in session.get_outputs()]
    rng = np.random.default_rng(0)
    caches = _random_caches(spec, precision, max_context)
    worst = 0.0
    rounds = [(0, min(9, max_context - 4)), (min(9, max_context - 4), 1), (max_context - 3, 3)]
    for length, rows in rounds:
        ids = rng.integers(0, spec.vocab_size, size=(1, rows), dtype=np.int64)
        feeds = [ids, np.array([length], dtype=np.int64), _logit_rows(rows), *caches]
        want = _run_module(module, feeds)
        _check_finite(module, feeds, want, precision, f"{path.name}, context {length}")
        got = _run_session(session, feeds)
        where = f"{path.name}: at context {length} with {rows} tokens"
        worst = max(worst, _largest_gap(where, names, want, got, length + rows, precision))
        caches = got[-len(caches) :]
    return f"target graph agrees with PyTorch over {len(rounds)} calls, worst {worst:.1e}"


def check_target_sampled(
    path: Path,
    spec: DecoderSpec,
    tensors: Mapping[str, GraphTensor],
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
    written: Callable[[], object] = lambda: None,
) -> list[str]:
    """Compare a large target's graph with its module as `draftrt.export.check.drafter` says.

    Returns:
        One line for all weights, one for the features, one for each kind with several layers, one
        for each round.

    Raises:
        ExportError: a weight's bytes or the places of the features differ, a layer's nodes are not
            those of its kind, or logits or caches are beyond the tolerance.
    """
    computed = Precision.FP32 if precision is Precision.BF16 else precision
    both = _TargetSides(f"{path.name}, ", spec, tensors, computed, max_context)

    def check_nodes() -> list[str]:
        return [*_check_features(path, taps), *check_same_layers(path, spec.windows)]

    rounds = [(0, 5), (max_context - 3, 3)]
    todo = samples(spec.windows, rounds, tensors[both.head].shape[0])
    tables = (tensors[both.head].name,)
    return compare_samples(path, tensors, todo, spec.num_layers, tables, both, check_nodes, written)


@dataclass(frozen=True, slots=True)
class _TargetSides:
    """One layer of a target by its module and by its graph.

    Attributes:
        where: for messages.
        spec: the target's layers.
        tensors: its weights.
        precision: what is computed in.
        max_context: rows of each cache.
        caches: keys and values of every round, by their shape.
    """

    where: str
    spec: DecoderSpec
    tensors: Mapping[str, GraphTensor]
    precision: Precision
    max_context: int
    caches: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def head(self) -> str:
        """Name of the weight that makes the logits."""
        return LM_HEAD if LM_HEAD in self.tensors else TABLE

    def feed(self, sample: Sample) -> list[Any]:
        """Return the inputs of a round, of the caches the rows in use."""
        groups, dim = self.spec.cache_shape(sample.layer)
        shape = (1, groups, self.max_context, dim)
        if shape not in self.caches:
            self.caches[shape] = random_caches([shape, shape], self.precision)
        size = (1, sample.count)
        ids = self.rng.integers(0, self.spec.vocab_size, size=size, dtype=np.int64)
        start, rows = np.array([sample.length], dtype=np.int64), _logit_rows(sample.count)
        return [ids, start, rows, *rows_for(self.caches[shape], sample.length + sample.count)]

    def want(self, sample: Sample, feeds: list[Any]) -> list[Any]:
        """Return what the module makes of them, of the caches the rows in use."""
        window = self.spec.windows[sample.layer]
        one = replace(self.spec, windows=(window,), num_layers=1, tie_word_embeddings=False)
        cut = {LM_HEAD: (self.head, sample.block.start, sample.block.stop)}
        weights = LazyWeights(self.tensors, sample.layer, cut=cut)
        module = Decoder(one, weights, with_states=True).eval()
        found = _run_module(module, feeds)
        if self.precision is Precision.FP16 and not is_finite(found):
            tables = (name for name in self.tensors if name.startswith(ROPE))
            read = Decoder(one, weights.whole([*decoder_shapes(one), *tables]), with_states=True)
            where, layer = f"{self.where}context {sample.length}", sample.layer
            _check_finite(read.eval(), feeds, found, self.precision, where, layer)
        *outputs, _, state = found
        used = sample.length + sample.count
        return [_rows_in_use(array, used).copy() for array in (*outputs, state)]

    def run(self, sample: Sample, session: Any, feeds: list[Any]) -> dict[str, Any]:
        """Return what the graph makes of them, by name, of the caches the rows in use."""
        used = sample.length + sample.count
        names = [item.name for item in session.get_outputs()]
        arrays = [_rows_in_use(array, used).copy() for array in _run_session(session, feeds)]
        return dict(zip(names, arrays, strict=True))

    def compare(self, sample: Sample, want: list[Any], got: dict[str, Any]) -> str:
        """Compare the two; return a line about it."""
        what = f"layer {sample.layer} of {self.spec.num_layers}, vocabulary rows {sample.block}"
        where = f"{self.where}{what}: at context {sample.length} with {sample.count} tokens"
        used = sample.length + sample.count
        gap = _largest_gap(where, [*got], want, [*got.values()], used, self.precision)
        context = f"context {sample.length} + {sample.count} rows"
        return f"{what}, {context}: worst {gap:.1e} from PyTorch"


def _check_features(path: Path, taps: tuple[int, ...]) -> list[str]:
    """The features join the results of the tapped layers, in the order of the taps."""
    wanted = [state_name(tap) for tap in taps]
    found = [name for names in feature_sources(path).values() for name in names]
    if found != wanted:
        raise ExportError(
            f"{path.name}: features are made of {found}, expected {wanted}",
            hint="the exported graph is wrong: a defect of draftrt, please report it",
        )
    return [f"features are the results of layers {list(taps)}"] if taps else []


def _logit_rows(count: int) -> Any:
    """Ask for every row of a call, the last first, and for the first twice."""
    return np.array([*range(count - 1, -1, -1), 0], dtype=np.int64)


def _run_module(module: Decoder, feeds: list[Any]) -> list[Any]:
    with torch.no_grad():
        return [tensor.numpy() for tensor in module(*(torch.from_numpy(feed) for feed in feeds))]


def _check_finite(
    module: Decoder,
    feeds: list[Any],
    found: list[Any],
    precision: Precision,
    where: str,
    layer: int | None = None,
) -> None:
    """Refuse a target that leaves the range of float16.

    Args:
        module: it computed what was found.
        feeds: its inputs.
        found: what it returned.
        precision: of the computation.
        where: for the message.
        layer: the layer of the target that is the module's only one; None for a whole one.

    Raises:
        ExportError: names the tensor.
    """
    if precision is not Precision.FP16 or is_finite(found):
        return
    error = overflow_in(module, lambda: _run_module(module, feeds), where, layer=layer)
    if error is not None:
        raise error


def _run_session(session: Any, feeds: list[Any]) -> list[Any]:
    inputs = [item.name for item in session.get_inputs()]
    found: list[Any] = session.run(None, dict(zip(inputs, feeds, strict=True)))
    return found


def _largest_gap(
    where: str, names: list[str], want: list[Any], got: list[Any], used: int, precision: Precision
) -> float:
    """Return the largest difference, relative to each output's largest value, or refuse it.

    Tokens are compared with the graph's own logits: PyTorch's may be tied.
    """
    worst = 0.0
    for name, a, b in zip(names, want, got, strict=True):
        if name == "next_ids":
            continue
        a, b = _rows_in_use(a, used), _rows_in_use(b, used)
        gap = relative_gap(a, b)
        if not gap <= TOLERANCE[precision]:
            raise ExportError(
                f"{where}: {name} differs from PyTorch by {gap:.2e} (relative to its largest "
                "value)",
                hint="the exported graph is wrong: a defect of draftrt, please report it",
            )
        worst = max(worst, gap)
    found = dict(zip(names, got, strict=True))
    _check_choice(where, found["next_ids"], found["logits"])
    return worst


def _check_choice(where: str, ids: Any, logits: Any) -> None:
    """Every id [1, S] has the largest of its logits [1, S, V], or the graph is refused."""
    inside = np.clip(ids, 0, logits.shape[-1] - 1)
    chosen = np.take_along_axis(logits, inside[..., None], axis=-1)[..., 0]
    wrong = np.argwhere((inside != ids) | (chosen != logits.max(axis=-1)))
    if len(wrong):
        place = tuple(wrong[0])
        raise ExportError(
            f"{where}: next_ids[{place[1]}] is {ids[place]}, expected {logits[place].argmax()}, "
            "which has the largest of its logits",
            hint="the exported graph is wrong: a defect of draftrt, please report it",
        )


def _rows_in_use(array: Any, rows: int) -> Any:
    """Return the cache rows that hold something; other outputs as they are."""
    return array[:, :, :rows] if array.ndim == 4 else array


def _random_caches(spec: DecoderSpec, precision: Precision, max_context: int) -> list[Any]:
    shapes = [spec.cache_shape(layer) for layer in range(spec.num_layers) for _ in range(2)]
    return random_caches([(1, groups, max_context, dim) for groups, dim in shapes], precision)
