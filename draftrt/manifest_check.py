"""What a manifest says, looked at once when it is read: every later stage relies on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from draftrt.bundle_files import name_problem
from draftrt.codec import to_json
from draftrt.errors import BundleError
from draftrt.manifest import GraphEntry, Manifest
from draftrt.signature import Signature, TensorSpec
from draftrt.spec import DrafterSpec

MOST, MOST_SIZE, MOST_ROWS = 1 << 62, 1 << 31, 1 << 24
MOST_RANK, CACHE_RANK, MOST_PROBLEMS = 8, 4, 8
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # those of export/activations
DTYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
PRESENT, PAST = "present_", "past_"
POSITIVE = (
    *("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
    *("block_size", "num_draft_tokens", "target_hidden_size", "input_vocab_size"),
    "draft_vocab_size",
)


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        BundleError: names every entry that cannot be so.
    """
    problems = list(islice(_value_problems(to_json(manifest), "manifest"), MOST_PROBLEMS))
    problems += [*_name_problems(manifest), *_unlisted(manifest)]
    for key, graph in manifest.graphs.items():
        problems += [f"graphs.{key}: {problem}" for problem in _graph_problems(graph)]
    if manifest.drafter is not None:
        problems += [f"drafter: {problem}" for problem in _drafter_problems(manifest.drafter)]
        if "draft" in manifest.graphs:
            signature = manifest.graphs["draft"].signature
            problems += _of_drafter(manifest.drafter, signature)
    if problems:
        raise BundleError("; ".join(problems[:MOST_PROBLEMS]))


def _value_problems(value: object, where: str) -> Iterator[str]:
    """Yield which numbers and texts no manifest holds, with their places."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _value_problems(key, where)
            yield from _value_problems(item, f"{where}.{key!s:.60}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _value_problems(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: got {value}, expected a finite number"
    elif isinstance(value, int) and abs(value) >= MOST:
        yield f"{where}: got an integer of {value.bit_length()} bits, expected at most 62"
    elif isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        yield f"{where}: got {value!r:.60}, expected Unicode text"


def _graph_problems(graph: GraphEntry) -> Iterator[str]:
    """Yield what of a graph's table cannot be so."""
    signature = graph.signature
    if not 1 <= graph.max_context <= MOST_ROWS:
        yield f"max_context: got {graph.max_context}, expected 1 to {MOST_ROWS}"
    tensors = (*signature.inputs, *signature.outputs)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        yield "signature: a name is there twice"
    for tensor in tensors:
        yield from (f"{tensor.name!s:.60}: {one}" for one in _tensor_problems(tensor, signature))
    aliases = [tensor.alias for tensor in signature.outputs if tensor.alias]
    if len(set(aliases)) < len(aliases):
        yield "signature: two outputs share the buffer of one input"
    if "next_ids" in names and not {"R", "S"} <= signature.dimensions.keys():
        yield f"dimensions: got {sorted(signature.dimensions)}, expected R and S"


def _tensor_problems(tensor: TensorSpec, signature: Signature) -> Iterator[str]:
    if tensor.dtype not in DTYPES:
        yield f"got dtype {tensor.dtype!r:.40}, expected one of {list(DTYPES)}"
    if len(tensor.shape) > MOST_RANK:
        yield f"got {len(tensor.shape)} axes, expected at most {MOST_RANK}"
    for size in tensor.shape[:MOST_RANK]:
        if isinstance(size, str) and size not in signature.dimensions:
            yield f"got the size {size!r:.40}, expected one of {sorted(signature.dimensions)}"
        if isinstance(size, int) and not 1 <= size <= MOST_SIZE:
            yield f"got a size of {size}, expected 1 to {MOST_SIZE}"
    if tensor.alias is None:
        return
    past = next((one for one in signature.inputs if one.name == tensor.alias), None)
    if past is None or (past.shape, past.dtype) != (tensor.shape, tensor.dtype):
        yield f"shares the buffer of {tensor.alias!r:.60}, which is no input of its shape and type"
    elif len(tensor.shape) != CACHE_RANK or not all(isinstance(s, int) for s in tensor.shape):
        yield f"got a cache of shape {list(tensor.shape)}, expected four whole numbers"
    elif tensor.name.startswith(PRESENT) and tensor.alias != tensor.name.replace(PRESENT, PAST, 1):
        yield f"shares the buffer of {tensor.alias}, expected that of its own past"


def _drafter_problems(spec: DrafterSpec) -> Iterator[str]:
    """Yield what of a drafter's facts cannot be so."""
    for name in POSITIVE:
        if not 1 <= getattr(spec, name) <= MOST_SIZE:
            yield f"{name}: got {getattr(spec, name)}, expected 1 to {MOST_SIZE}"
    if spec.num_kv_heads >= 1 and spec.num_heads % spec.num_kv_heads:
        yield f"num_heads: got {spec.num_heads}, expected a multiple of {spec.num_kv_heads}"
    if len(spec.layers) != spec.num_layers:
        yield f"layers: got {len(spec.layers)}, expected {spec.num_layers}"
    if not spec.target_layer_ids or min(spec.target_layer_ids) < -1:
        yield f"target_layer_ids: got {list(spec.target_layer_ids)}, expected layers from -1 on"
    if spec.mask_token_id < 0:
        yield f"mask_token_id: got {spec.mask_token_id}, expected a token id"
    if spec.activation not in ACTIVATIONS:
        yield f"activation: got {spec.activation!r:.40}, expected one of {sorted(ACTIVATIONS)}"
    for name in ("rms_norm_eps", "attention_scale"):
        if getattr(spec, name) <= 0:
            yield f"{name}: got {getattr(spec, name)}, expected more than 0"


def _of_drafter(spec: DrafterSpec, signature: Signature) -> Iterator[str]:
    """Yield where the draft graph's table contradicts the drafter's facts."""
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    drafts = outputs.get("draft_ids")
    if drafts is not None and drafts.shape != (1, spec.num_draft_tokens):
        yield (
            f"graphs.draft: draft_ids: got shape {list(drafts.shape)}, expected [1, "
            f"{spec.num_draft_tokens}] of block_size {spec.block_size}"
        )
    if ("confidence" in outputs) and spec.confidence is None:
        yield "graphs.draft: got confidences, expected none: the drafter has no such head"


def _name_problems(manifest: Manifest) -> list[str]:
    """Return which names of files do not lie in the bundle."""
    names = {f"files.{name!r:.80}": name for name in manifest.files}
    names |= {f"links.{name!r:.80}": name for name in manifest.links}
    for key, graph in manifest.graphs.items():
        names |= {f"graphs.{key}.file": graph.file, f"graphs.{key}.data": graph.data}
        if graph.flexible:
            names[f"graphs.{key}.flexible"] = graph.flexible
        names |= {f"graphs.{key}.borrowed": file for file in graph.borrowed.values()}
    for key, plan in manifest.plans.items():
        names |= {f"plans.{key!r:.80}.file": plan.file, f"plans.{key!r:.80}.log": plan.log}
    return [
        f"{where}: {problem}" for where, name in names.items() if (problem := name_problem(name))
    ]


def _unlisted(manifest: Manifest) -> list[str]:
    """Return which files of graphs are not listed with a size and a hash."""
    known = {*manifest.files, *manifest.links}
    found = []
    for key, graph in manifest.graphs.items():
        named = {graph.file, graph.data, graph.flexible or graph.file, *graph.borrowed.values()}
        found += [f"graphs.{key}: {name} is not in files" for name in sorted(named - known)]
    return found
