"""The PyTorch module of a bundle's graph, rebuilt from the bundle alone."""

from __future__ import annotations

from collections.abc import Mapping

from draftrt.bundle import Bundle
from draftrt.errors import BundleError
from draftrt.export.checkpoint.tensors import GraphTensor, TensorRef
from draftrt.export.config.manifest_facts import check_facts
from draftrt.export.graph.files import read_initialisers
from draftrt.export.models.decoder import Decoder
from draftrt.export.models.drafter import Drafter, SampledDrafter
from draftrt.export.models.shapes import decoder_shapes, rope_of, tensor_shapes
from draftrt.export.models.signature import EXTRA_OUTPUTS, SAMPLED_INPUTS
from draftrt.export.weights.quantized import QuantizedRef
from draftrt.export.weights.tensors import graph_dtype, rope_tensors
from draftrt.manifest import GraphEntry
from draftrt.quantization import DRAFT, TARGET, KeptForm, describe, part_of
from draftrt.spec import DecoderSpec, DrafterSpec, Precision, Profile

# What code that builds a model of facts raises where they contradict each other.
REBUILDS = (
    KeyError,
    IndexError,
    AttributeError,
    TypeError,
    ValueError,
    RuntimeError,
    ArithmeticError,
)
CUT = ("lm_head.weight", "markov_head.markov_w2.weight")  # to the ids that may be drafted
APART = "graph and manifest do not belong together; export again"


def module_from_bundle(
    bundle: Bundle, *, extra_outputs: tuple[str, ...] = EXTRA_OUTPUTS, is_wide: bool = False
) -> Drafter:
    """Return the module that a bundle's draft graph was traced from, with the graph's own weights.

    The facts come from the manifest, the rotary tables from those facts, and the weights from the
    ONNX file, where they stand under their checkpoint names; quantised ones are what their integers
    stand for.

    Args:
        bundle: an open bundle.
        extra_outputs: further outputs.
        is_wide: compute in float32 whatever the graph's element type is, with the same weights.

    Raises:
        BundleError: the graph's weights are not those that the manifest's drafter needs.
        SpecError: the manifest states facts that no drafter can have.
    """
    spec, entry = bundle.drafter(), bundle.graph(DRAFT)
    tensors = bundle_tensors(bundle, DRAFT, spec)
    if is_wide:
        tensors = {name: _wide(tensor) for name, tensor in tensors.items()}
    fed = {tensor.name for tensor in entry.signature.inputs}
    try:
        return reference_module(
            spec,
            tensors,
            extra_outputs=extra_outputs,
            profile=Profile(entry.profile),
            is_sampled=fed.issuperset(SAMPLED_INPUTS),
        )
    except REBUILDS as error:
        raise BundleError(
            f"{bundle.path}: its drafter cannot be rebuilt: {error!s:.200}", hint=APART
        ) from error


def decoder_from_bundle(bundle: Bundle, taps: tuple[int, ...]) -> Decoder:
    """Return the module of a bundle's target graph in float32, with the graph's own weights.

    Args:
        bundle: holds a target graph.
        taps: decoder layers whose outputs it returns, whichever the graph taps; -1 the embedding.

    Raises:
        BundleError: the bundle holds no target graph, or its weights are not those it needs.
        SpecError: the manifest states facts that no target can have.
    """
    spec = decoder_of(bundle)
    contents = {
        name: tensor.source.read().float()
        for name, tensor in bundle_tensors(bundle, TARGET, spec).items()
    }
    return Decoder(spec, contents, taps=taps)


def decoder_of(bundle: Bundle) -> DecoderSpec:
    """Return the facts of a bundle's target graph.

    Raises:
        BundleError: the bundle holds no target graph.
    """
    bundle.graph(TARGET)
    if bundle.manifest.decoder is None:
        raise BundleError(f"{bundle.path}: the manifest does not describe the target's layers")
    return bundle.manifest.decoder


def bundle_tensors(
    bundle: Bundle, graph: str, spec: DrafterSpec | DecoderSpec
) -> dict[str, GraphTensor]:
    """Return every initialiser of a bundle's graph: weights from its file, tables from the facts.

    Args:
        bundle: an open bundle.
        graph: ``draft`` or ``target``.
        spec: the facts.

    Raises:
        BundleError: the file lacks a weight, or holds one of another size or element type than
            facts and manifest state.
        SpecError: the facts are none that a model can have.
    """
    check_facts(spec, str(bundle.path))
    entry = bundle.graph(graph)
    shapes, tables = _shapes(spec), _tables(spec, entry.max_context)
    stored = read_initialisers(bundle.file(entry.file))
    problems = _problems(shapes, stored, entry)
    if problems:
        raise BundleError(
            f"{bundle.path}: {entry.file} is not the graph that the manifest describes: "
            + "; ".join(problems),
            hint=APART,
        )
    weights = {
        name: GraphTensor(name, ref.shape, graph_dtype(name, entry.precision), ref)
        for name, ref in ((name, stored[name]) for name in shapes)
    }
    return weights | tables


def _shapes(spec: DrafterSpec | DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return every weight with its size, -1 where a size is free."""
    if isinstance(spec, DecoderSpec):
        return decoder_shapes(spec)
    rows = spec.draft_vocab_size - spec.num_padded_rows
    shapes = tensor_shapes(spec)
    return shapes | {name: (rows, *shapes[name][1:]) for name in CUT if name in shapes}


def _tables(spec: DrafterSpec | DecoderSpec, max_context: int) -> dict[str, GraphTensor]:
    if isinstance(spec, DrafterSpec):
        return rope_tensors(spec.rope, max_context)
    made: dict[str, GraphTensor] = {}
    for window in dict.fromkeys(spec.windows):
        embedding, prefix = rope_of(spec, window)
        made |= rope_tensors(embedding, max_context, prefix)
    return made


def _problems(
    shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, TensorRef], entry: GraphEntry
) -> list[str]:
    """Say how a file's weights are not those that are stated, alike ones together."""
    missing = [name for name in shapes if name not in stored]
    if missing:
        return [f"it lacks the weights {missing[:5]} ({len(missing)} in all)"]
    found = []
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, shape in shapes.items():
        got, want = stored[name], graph_dtype(name, entry.precision)
        if len(got.shape) != len(shape) or any(
            size not in (-1, own) for size, own in zip(shape, got.shape, strict=True)
        ):
            found.append(f"{name} has shape {list(got.shape)}, expected {list(shape)}")
        if got.dtype != want:
            kinds.setdefault((got.dtype, want), []).append(name)
    for (got_type, want_type), names in kinds.items():
        found.append(
            f"{len(names)} weights, {names[0]} first, are {got_type}, expected {want_type} "
            f"({entry.precision.value})"
        )
    return [*found[:6], *_quantization_problem(stored, entry)]


def _quantization_problem(stored: Mapping[str, TensorRef], entry: GraphEntry) -> list[str]:
    held = {
        part: ref.scheme
        for name, ref in stored.items()
        if isinstance(ref, QuantizedRef)
        and name not in entry.kept
        and (part := part_of(name, is_product=ref.is_product)) is not None
    }
    wrong = [name for name, form in entry.kept.items() if _form(stored.get(name)) != form]
    if wrong:
        return [f"{wrong[0]} is not held as the manifest states ({len(wrong)} such in all)"]
    if held == dict(entry.quantization):
        return []
    got, want = (describe(one) or "none" for one in (held, entry.quantization))
    return [f"quantised weights: got {got}, the manifest states {want}"]


def _form(ref: TensorRef | None) -> KeptForm | None:
    """Return the form of a quantised weight of a file; None for other weights."""
    if not isinstance(ref, QuantizedRef) or ref.scales is None:
        return None
    blocks = ref.scales.shape[0] if len(ref.scales.shape) == 2 else 0
    block = ref.shape[1] // blocks if blocks else None
    return KeptForm(ref.scheme, block, ref.order is not None, ref.base_kind)


def _wide(tensor: GraphTensor) -> GraphTensor:
    ref = tensor.source
    source = ref.exact() if isinstance(ref, QuantizedRef) else ref
    dtype = graph_dtype(tensor.name, Precision.FP32)
    return GraphTensor(tensor.name, tensor.shape, dtype, source)


def reference_module(
    spec: DrafterSpec,
    tensors: Mapping[str, GraphTensor],
    *,
    extra_outputs: tuple[str, ...] = (),
    profile: Profile = Profile.FIXED,
    is_sampled: bool = False,
) -> Drafter:
    """Return the module with its contents loaded, ready to compute in eager mode."""
    contents = {name: tensor.read() for name, tensor in tensors.items()}
    kind = SampledDrafter if is_sampled else Drafter
    return kind(spec, contents, profile=profile, extra_outputs=extra_outputs).eval()
