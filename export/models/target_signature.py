"""The input and output table of a target graph."""

from __future__ import annotations

from draftrt.export.models.signature import CAPACITY, LARGEST_BLOCK, cache_tensors
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import DecoderSpec, Precision

ROWS, ASKED = "R", "S"
MAX_ROWS = 256


def target_signature(
    spec: DecoderSpec,
    taps: tuple[int, ...],
    precision: Precision,
    max_context: int,
    *,
    is_flexible: bool = False,
) -> Signature:
    """Return the table of a target graph.

    Prompts longer than `MAX_ROWS` are fed in pieces, and so are more than `LARGEST_BLOCK` tokens
    whose next ones are all asked for.
    """
    length = CAPACITY if is_flexible else max_context
    inputs = [
        TensorSpec(name="input_ids", dtype="int64", shape=(1, ROWS), about="new tokens"),
        TensorSpec(
            name="context_length",
            dtype="int64",
            shape=(1,),
            about="rows committed before this call",
        ),
        TensorSpec(
            name="logit_rows",
            dtype="int64",
            shape=(ASKED,),
            about="rows of this call, 0 to R - 1, whose next token is asked for",
        ),
    ]
    outputs = [
        TensorSpec(name="next_ids", dtype="int64", shape=(1, ASKED), about="greedy next token"),
        TensorSpec(name="logits", dtype="float32", shape=(1, ASKED, spec.vocab_size)),
    ]
    if taps:
        width = len(taps) * spec.hidden_size
        about = f"outputs of decoder layers {list(taps)} (-1: the embedding)"
        outputs.append(
            TensorSpec(name="features", dtype="float32", shape=(1, ROWS, width), about=about)
        )
    layers = map(spec.cache_shape, range(spec.num_layers))
    past, present = cache_tensors([(1, groups, length, dim) for groups, dim in layers], precision)
    longest, most = min(MAX_ROWS, max_context), min(LARGEST_BLOCK, max_context)
    ranges = {
        ROWS: DimRange(min=1, opt=min(8, longest), max=longest),
        ASKED: DimRange(min=1, opt=min(8, most), max=most),
    }
    if is_flexible:
        ranges[CAPACITY] = DimRange(min=1, opt=max_context, max=max_context)
    return Signature(inputs=(*inputs, *past), outputs=(*outputs, *present), dimensions=ranges)
