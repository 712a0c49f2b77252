"""What a pair takes before anything is made of it, and when speculation pays.

Predictions fitted to measurements: the size of a bundle.

Weights are counted exactly. What lies beside them in a bundle is a straight line through the
measurements in docs/log.md.

When speculation pays: the acceptance length that a round must reach, and the drafts to verify.

With t(r) the time of a target call of r rows and d that of the drafter's one call, a round that
verifies n drafts takes d + t(n + 1) and yields tau tokens; plain decoding takes t(1) a token.
Speculation pays where tau > (d + t(n + 1)) / t(1). If every draft is kept with probability a when
those before it are, tau = (1 - a^(n+1)) / (1 - a). Both are from Leviathan, Kalman and Matias,
"Fast Inference from Transformers via Speculative Decoding" (ICML 2023), equation 1 and theorem 3.8;
a block drafter drafts all n tokens in one call, so d stands where n calls of a small model stand
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftrt.bundle import Bundle
from draftrt.bundle_files import MANIFEST, Verify
from draftrt.engines.devices import Device
from draftrt.engines.memory import GraphMemory, bundle_memory, graph_memory, num_steps
from draftrt.errors import SpecError
from draftrt.export.check.memory import export_peak_bytes
from draftrt.export.checkpoint.decoder import say_left_out
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.safetensors import check_folder, read_headers
from draftrt.export.checkpoint.target import read_target
from draftrt.export.checkpoint.target_files import TOKENIZER_FILES
from draftrt.export.config.keys import of_draft
from draftrt.export.models.signature import draft_signature, target_signature
from draftrt.export.options import ExportOptions, max_context
from draftrt.export.pipeline import check_quantised, choose_decoder
from draftrt.export.weights.data_file import is_read_whole
from draftrt.export.weights.placement import place_draft, place_target
from draftrt.export.weights.storage import PlacedWeights, WeightFiles
from draftrt.manifest import Costs
from draftrt.spec import DecoderSpec, DrafterSpec

GRAPH_BYTES, LAYER_BYTES = 7_500, 17_300  # of the two ONNX files of a graph
MANIFEST_BYTES = 14_000


def bundle_bytes(weights: int, layers: Sequence[int], tokenizer: int) -> int:
    """Return the size of a bundle without plans.

    Args:
        weights: bytes of its data files.
        layers: of each graph.
        tokenizer: bytes of the tokenizer's files.
    """
    graphs = sum(GRAPH_BYTES + LAYER_BYTES * count for count in layers)
    return weights + graphs + tokenizer + MANIFEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a pair takes.

    Attributes:
        name: of the drafter.
        graphs: graph name to its memory.
        num_draft_tokens: drafts a round; 0 without a drafter.
        context: tokens the caches are counted for.
        precision: of weights and caches.
        bundle_bytes: size of the bundle without plans.
        shared_bytes: of weights that two graphs of the bundle use and that are stored once.
        export_peak_bytes: peak memory of the export, predicted; None for a bundle that is there.
        remark: what is left out.
        costs: ways to run the pair to their measured costs.
    """

    name: str
    graphs: Mapping[str, GraphMemory]
    num_draft_tokens: int
    context: int
    precision: str
    bundle_bytes: int
    shared_bytes: int
    export_peak_bytes: int | None
    remark: str
    costs: Mapping[str, Costs]

    def device_bytes(self) -> int:
        """Return what all graphs take on a device together."""
        return sum(graph.device for graph in self.graphs.values())

    def modelled(self, device: Device) -> Costs | None:
        """Return costs modelled for a device; None without both graphs."""
        if not {"draft", "target"} <= set(self.graphs):
            return None
        target, draft = (self.graphs[name] for name in ("target", "draft"))
        return modelled_costs(
            target_bytes=target.read + target.caches,
            draft_bytes=draft.read + draft.caches,
            bandwidth=device.bandwidth,
            context=self.context,
        )


def plan_pair(
    draft: Path | None,
    target: Path | None,
    options: ExportOptions,
    context: int | None = None,
    *,
    verify: Verify = Verify.REMEMBERED,
) -> Capacity:
    """Plan a pair from its checkpoints, a target alone, or a bundle that is there.

    Args:
        draft: drafter checkpoint, or a bundle; None for a target alone.
        target: target checkpoint; None with a bundle.
        options: how it would be exported.
        context: tokens the caches are counted for; None: all rows of the caches.
        verify: how much of a bundle's content is read.

    Raises:
        SpecError: a checkpoint without a target, or a bundle with one; more context than rows.
        DraftrtError: whatever an export would refuse before any work.
    """
    if draft is not None and (draft / MANIFEST).is_file():
        if target is not None:
            raise SpecError(f"{draft} is a bundle and has its target", hint="leave out --target")
        return _plan_bundle(Bundle.open(draft, verify=verify), context)
    if draft is not None:
        check_folder(draft)
    if target is None:
        raise SpecError(
            f"{draft}: no target given", hint="pass --target, or a bundle in place of the drafter"
        )
    return _plan_checkpoints(draft, target, options, context)


def _plan_bundle(bundle: Bundle, context: int | None) -> Capacity:
    manifest = bundle.manifest
    entry = next(iter(manifest.graphs.values()))
    rows = entry.max_context
    _check_context(context, rows, "export the bundle again with a larger --max-context")
    spec = manifest.drafter
    return Capacity(
        name=bundle.path.name,
        graphs=bundle_memory(bundle, context),
        num_draft_tokens=0 if spec is None else spec.num_draft_tokens,
        context=context or rows,
        precision=entry.precision.value,
        bundle_bytes=sum(file.bytes for file in manifest.files.values()),
        shared_bytes=0,
        export_peak_bytes=None,
        remark="" if "target" in manifest.graphs else "the bundle holds no target graph",
        costs=manifest.costs,
    )


def _plan_checkpoints(
    draft: Path | None, target: Path, options: ExportOptions, context: int | None
) -> Capacity:
    model = read_target(target, draft=draft)
    loaded = None
    if draft is not None:
        loaded = load_drafter(
            draft,
            model,
            sample_from_anchor=options.sample_from_anchor,
            family=options.family,
            ignore_keys=of_draft(options.ignore_keys),
        )
    decoder, left_out = choose_decoder(model, options, None if loaded is None else loaded.spec)
    remark = "" if left_out is None else say_left_out(left_out)
    if options.target_graph is False:
        remark = "the target is not exported"
    check_quantised(options, has_draft=loaded is not None, has_target=decoder is not None)
    spec = None if loaded is None else loaded.spec
    rows = max_context(options, spec, decoder)
    _check_context(context, rows, f"pass --max-context {context} too")
    files = WeightFiles(target, options.weights)
    placed = {}
    if loaded is not None:
        placed["draft"] = place_draft(loaded, options, rows, files)
    if decoder is not None:
        placed["target"] = place_target(decoder, target, options, rows, files)
    graphs = _graphs(spec, decoder, placed, options, rows, context)
    full = _graphs(spec, decoder, placed, options, rows, None)
    own = files.progress.total + sum(weights.quantised_bytes() for weights in placed.values())
    layers = [one.num_layers for one in (spec, decoder) if one is not None]
    tokenizer = sum(
        (target / name).stat().st_size for name in TOKENIZER_FILES if (target / name).is_file()
    )
    if decoder is None:
        stored = sum(ref.num_bytes for ref in read_headers(target).values())
        remark += f" (its checkpoint has {stored / 1e9:.1f} GB)"
    return Capacity(
        name=(draft or target).resolve().name,
        graphs=graphs,
        num_draft_tokens=0 if spec is None else spec.num_draft_tokens,
        context=context or rows,
        precision=options.precision.value,
        bundle_bytes=bundle_bytes(own, layers, tokenizer),
        shared_bytes=sum(weights.borrowed_bytes() for weights in placed.values()),
        export_peak_bytes=export_peak_bytes(placed, {n: one.caches for n, one in full.items()}),
        remark=remark,
        costs={},
    )


def _check_context(context: int | None, rows: int, hint: str) -> None:
    if context is not None and context > rows:
        raise SpecError(
            f"--context: got {context} tokens, expected at most the {rows} rows of each cache",
            hint=hint,
        )


def _graphs(
    spec: DrafterSpec | None,
    decoder: DecoderSpec | None,
    placed: Mapping[str, PlacedWeights],
    options: ExportOptions,
    rows: int,
    context: int | None,
) -> dict[str, GraphMemory]:
    signatures = {}
    if spec is not None:
        signatures["draft"] = draft_signature(
            spec,
            options.precision,
            rows,
            options.extra_outputs,
            is_sampled=options.sampled,
        )
    if decoder is not None:
        taps = () if spec is None else spec.target_layer_ids
        signatures["target"] = target_signature(decoder, taps, options.precision, rows)
    return {
        name: graph_memory(
            weights.num_bytes(),
            weights.num_bytes(is_read_whole),
            signatures[name],
            rows,
            context,
            num_steps(spec) if spec is not None and name == "draft" else 0,
        )
        for name, weights in placed.items()
    }


def fitting(plan: Capacity, devices: Iterable[Device]) -> dict[str, bool]:
    """Return device name to whether the pair fits there."""
    return {device.name: plan.device_bytes() <= device.usable_bytes for device in devices}


ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best number of drafts to verify at one acceptance.

    Attributes:
        acceptance: probability that a draft is kept if those before it are.
        num_drafts: drafts to verify; 0: do not speculate.
        length: expected tokens a round.
        speedup: tokens a second over plain decoding's.
    """

    acceptance: float
    num_drafts: int
    length: float
    speedup: float


def break_even(costs: Costs, num_drafts: int) -> float:
    """Return the acceptance length from which rounds that verify ``num_drafts`` drafts pay."""
    return costs.rounds(num_drafts)[num_drafts] / costs.verify(1)


def expected_length(acceptance: float, num_drafts: int) -> float:
    """Return the expected tokens of a round, the bonus token among them."""
    if acceptance >= 1:
        return num_drafts + 1.0
    return float((1 - acceptance ** (num_drafts + 1)) / (1 - acceptance))


def best_choice(costs: Costs, acceptance: float, num_drafts: int) -> Choice:
    """Return how many of ``num_drafts`` drafts to verify, and what that brings."""
    best = Choice(acceptance=acceptance, num_drafts=0, length=1.0, speedup=1.0)
    for count in range(1, num_drafts + 1):
        length = expected_length(acceptance, count)
        speedup = length / break_even(costs, count)
        if speedup > best.speedup:
            best = Choice(acceptance=acceptance, num_drafts=count, length=length, speedup=speedup)
    return best


def modelled_costs(*, target_bytes: int, draft_bytes: int, bandwidth: float, context: int) -> Costs:
    """Return costs as if reading memory were all: a call takes the bytes it reads by the bandwidth.

    That holds while the rows of a call are few enough for arithmetic to hide behind memory, about a
    hundred on a GPU; it says nothing about launches and the host, so real calls take longer.

    Args:
        target_bytes: weights and caches that a target call reads.
        draft_bytes: the same for the drafter.
        bandwidth: bytes a second.
        context: cached tokens in question.
    """
    return Costs(
        draft_ms=1e3 * draft_bytes / bandwidth,
        verify_ms={1: 1e3 * target_bytes / bandwidth},
        context=context,
    )
