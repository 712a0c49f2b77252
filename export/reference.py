"""The PyTorch module of a bundle's graph, rebuilt from the bundle alone."""

from __future__ import annotations

from draftrt.bundle import Bundle
from draftrt.errors import BundleError
from draftrt.export.assemble import reference_module
from draftrt.export.decoder import Decoder
from draftrt.export.decoder_shapes import decoder_shapes
from draftrt.export.drafter import Drafter
from draftrt.export.graph_tensors import GraphTensor, graph_dtype
from draftrt.export.initialisers import read_initialisers
from draftrt.export.outputs import EXTRA_OUTPUTS, SAMPLED_INPUTS
from draftrt.export.profile import Profile
from draftrt.export.quantized_file import QuantizedRef
from draftrt.export.rope import table_tensors
from draftrt.export.rope_shapes import rope_of
from draftrt.export.shapes import tensor_shapes
from draftrt.export.tensor_ref import TensorRef
from draftrt.spec import Precision


def module_from_bundle(
    bundle: Bundle, *, extra_outputs: tuple[str, ...] = EXTRA_OUTPUTS, is_wide: bool = False
) -> Drafter:
    """Return the module that a bundle's draft graph was traced from, with the graph's own weights.

    The facts come from the manifest and the weights from the ONNX file, where they stand under
    their checkpoint names; quantised ones are what their integers stand for.

    Args:
        bundle: an open bundle.
        extra_outputs: further outputs.
        is_wide: compute in float32 whatever the graph's element type is, with the same weights.

    Raises:
        BundleError: the graph lacks a weight that the manifest's drafter needs.
    """
    spec, entry = bundle.drafter(), bundle.graph("draft")
    wanted = [*tensor_shapes(spec), *table_tensors(spec.rope, entry.max_context)]
    stored = _stored(bundle, "draft", wanted)
    if is_wide:
        stored = {
            name: ref.exact() if isinstance(ref, QuantizedRef) else ref
            for name, ref in stored.items()
        }
    precision = Precision.FP32 if is_wide else entry.precision
    tensors = {
        name: GraphTensor(name, stored[name].shape, graph_dtype(name, precision), stored[name])
        for name in wanted
    }
    fed = {tensor.name for tensor in entry.signature.inputs}
    return reference_module(
        spec,
        tensors,
        extra_outputs=extra_outputs,
        profile=Profile(entry.profile),
        is_sampled=fed.issuperset(SAMPLED_INPUTS),
    )


def decoder_from_bundle(bundle: Bundle, taps: tuple[int, ...]) -> Decoder:
    """Return the module of a bundle's target graph in float32, with the graph's own weights.

    Args:
        bundle: holds a target graph.
        taps: decoder layers whose outputs it returns, whichever the graph taps; -1 the embedding.

    Raises:
        BundleError: the bundle holds no target graph, or it lacks a weight.
    """
    spec, entry = bundle.manifest.decoder, bundle.graph("target")
    if spec is None:
        raise BundleError(f"{bundle.path}: the manifest does not describe the target's layers")
    wanted = list(decoder_shapes(spec))
    for window in dict.fromkeys(spec.windows):
        embedding, prefix = rope_of(spec, window)
        wanted += table_tensors(embedding, entry.max_context, prefix)
    stored = _stored(bundle, "target", wanted)
    return Decoder(spec, {name: ref.read().float() for name, ref in stored.items()}, taps=taps)


def _stored(bundle: Bundle, graph: str, wanted: list[str]) -> dict[str, TensorRef]:
    """Return the wanted initialisers of a graph, unread."""
    file = bundle.graph(graph).file
    stored = read_initialisers(bundle.file(file))
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise BundleError(
            f"{bundle.path}: {file} lacks the weights {missing[:5]}",
            hint="graph and manifest do not belong together; export again",
        )
    return {name: stored[name] for name in wanted}
