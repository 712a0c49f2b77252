"""The PyTorch module of a bundle's graph, rebuilt from the bundle alone."""

from __future__ import annotations

import torch

from draftrt.bundle import Bundle
from draftrt.errors import BundleError
from draftrt.export.assemble import GraphTensor, graph_dtype, reference_module
from draftrt.export.checkpoint import TensorRef, from_tensor
from draftrt.export.drafter import EXTRA_OUTPUTS, SAMPLED_INPUTS, Drafter
from draftrt.export.ops import Profile
from draftrt.export.rope import table_tensors
from draftrt.export.shapes import tensor_shapes


def module_from_bundle(
    bundle: Bundle, *, extra_outputs: tuple[str, ...] = EXTRA_OUTPUTS
) -> Drafter:
    """Return the module that a bundle's draft graph was traced from, with the graph's own weights.

    The facts come from the manifest and the weights from the ONNX file, where they stand under
    their checkpoint names.

    Raises:
        BundleError: the graph lacks a weight that the manifest's drafter needs.
    """
    spec, entry = bundle.drafter(), bundle.graph("draft")
    stored = _initialisers(bundle)
    wanted = [*tensor_shapes(spec), *table_tensors(spec.rope, entry.max_context)]
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise BundleError(
            f"{bundle.path}: {entry.file} lacks the weights {missing[:5]}",
            hint="graph and manifest do not belong together; export again",
        )
    tensors = {
        name: GraphTensor(
            name, stored[name].shape, graph_dtype(name, entry.precision), stored[name]
        )
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


def _initialisers(bundle: Bundle) -> dict[str, TensorRef]:
    import onnx
    from onnx import TensorProto, numpy_helper

    kinds = {
        TensorProto.FLOAT: "float32",
        TensorProto.FLOAT16: "float16",
        TensorProto.BFLOAT16: "bfloat16",
        TensorProto.INT64: "int64",
    }
    entry = bundle.graph("draft")
    model = onnx.load(str(bundle.file(entry.file)), load_external_data=False)
    refs: dict[str, TensorRef] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type not in kinds:
            continue
        shape, dtype = tuple(tensor.dims), kinds[tensor.data_type]
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {item.key: item.value for item in tensor.external_data}
            refs[tensor.name] = TensorRef(
                tensor.name,
                dtype,
                shape,
                bundle.file(place["location"]),
                int(place.get("offset", "0")),
            )
        else:
            array = numpy_helper.to_array(tensor)
            content = (
                torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
                if dtype == "bfloat16"
                else torch.from_numpy(array.copy())
            )
            refs[tensor.name] = from_tensor(tensor.name, content)
    return refs
