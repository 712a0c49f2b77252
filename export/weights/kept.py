"""The checkpoint's own codes in a graph: which form holds them, and what that changes.

One table decides. Integers around zero stay what they are; those with zero points become the
difference of code and zero point, and codes of FP4 twice their value, both in INT8: nothing is
rounded but the scales, and those only where the graph's element type is a 16-bit one. All forms but
FP8 run on ONNX Runtime, where products with them are one kernel, and from SM86 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.checkpoint.quantized.linear import CodeKind, StoredLinear, StoredRef
from draftrt.export.checkpoint.quantized.packing import E2M1
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.weights.tensors import INT4_OPSET
from draftrt.quantization import KeptForm, Scheme, part_of

BLOCKS = (16, 32, 64, 128, 256)  # sizes that ONNX Runtime's kernels have
FP8_FROM = 89  # compute capability
TWICE = np.concatenate((2 * E2M1, -2 * E2M1)).astype(np.int8)
SLICE_ROWS = 512


def form_of(linear: StoredLinear, opset: int, sms: Sequence[int]) -> KeptForm | None:
    """Return how a graph can hold a weight by its own codes; None where it cannot.

    Args:
        linear: how the checkpoint stores it.
        opset: of the graph.
        sms: compute capabilities it is for; empty for any from 86 on.
    """
    width = linear.shape[1]
    block = None if linear.group >= width else linear.group
    if block is not None and (block not in BLOCKS or width % block or opset < INT4_OPSET):
        return None
    is_ordered = linear.order is not None
    if linear.kind is CodeKind.E4M3:
        return KeptForm(Scheme.FP8, block) if sms and min(sms) >= FP8_FROM else None
    if linear.kind is CodeKind.E2M1:
        return KeptForm(Scheme.INT8, block)
    if linear.zero_points is not None:
        return KeptForm(Scheme.INT8, block, is_ordered) if linear.bits == 4 else None
    if linear.bits == 4 and opset >= INT4_OPSET:
        return KeptForm(Scheme.INT4, block, is_ordered)
    return KeptForm(Scheme.INT8, block, is_ordered)


def keep_codes(
    tensors: Mapping[str, GraphTensor], opset: int, sms: Sequence[int]
) -> dict[str, GraphTensor]:
    """Return a graph's weights, each that can be held by its own codes marked so."""
    return {name: _marked(name, tensor, opset, sms) for name, tensor in tensors.items()}


def _marked(name: str, tensor: GraphTensor, opset: int, sms: Sequence[int]) -> GraphTensor:
    source = tensor.source
    if not isinstance(source, StoredRef) or part_of(name, is_product=True) is None:
        return tensor
    assert source.linear is not None
    return replace(tensor, kept=form_of(source.linear, opset, sms))


def kept_rows(ref: StoredRef, form: KeptForm) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return codes [n, in] and scales [n] or [n, blocks] of a weight's rows.

    Codes are int8, or bytes of FP8, sorted by groups where these are not in order.
    """
    linear, start, stop = ref.linear, ref.first, ref.first + ref.shape[0]
    assert linear is not None
    codes, scales = linear.codes(start, stop), linear.scales(start, stop)
    order = order_of(ref)
    codes = codes if order is None else codes[:, order]
    if linear.kind is CodeKind.E2M1:
        codes, scales = TWICE[codes], scales * np.float32(0.5)
    elif linear.zero_points is not None:
        zeros = linear.zero_points(start, stop).astype(np.int8).T
        wide = np.repeat(zeros, linear.group, axis=0)[: codes.shape[1]]
        codes = np.subtract(codes.T, wide, dtype=np.int8, casting="unsafe").T  # 4 bits: no overflow
    if linear.kind is not CodeKind.E4M3:
        codes = codes.astype(np.int8, copy=False)
    return codes, np.array(scales[:, 0] if form.block is None else scales, order="C")


def order_of(ref: StoredRef) -> NDArray[np.int64] | None:
    """Return the inputs [in] sorted by their groups; None where they are in order."""
    assert ref.linear is not None
    groups = ref.linear.order
    return None if groups is None else np.argsort(groups, kind="stable")


def described(tensors: Mapping[str, GraphTensor]) -> Iterator[str]:
    """Yield what became of the checkpoint's quantised weights, alike ones in one sentence."""
    found: dict[str, list[float]] = {}
    for tensor in tensors.values():
        if isinstance(tensor.source, StoredRef) and tensor.source.linear is not None:
            line = f"{tensor.source.linear.describe()}: {_become(tensor)}"
            found.setdefault(line, []).append(largest_change(tensor))
    for line, changes in found.items():
        yield f"{len(changes)} weights, {line}, largest change {max(changes):.1e}".replace(
            "0.0e+00", "0"
        )


def _become(tensor: GraphTensor) -> str:
    if tensor.kept is None:
        return f"dequantised to {tensor.dtype}"
    block = tensor.kept.block
    scales = "each output" if block is None else f"{block} inputs"
    order = ", inputs gathered by groups" if tensor.kept.is_ordered else ""
    return f"their own codes as {tensor.kept.scheme.value}, a scale for {scales}{order}"


def largest_change(tensor: GraphTensor) -> float:
    """Return the largest change of a weight by what the graph holds, relative to that weight."""
    if tensor.dtype == "float32":
        return 0.0
    import torch

    source, worst = tensor.source, 0.0
    assert isinstance(source, StoredRef)
    for start in range(0, source.shape[0], SLICE_ROWS):
        rows = source.rows(start, min(start + SLICE_ROWS, source.shape[0]))
        assert isinstance(rows, StoredRef)
        exact = (
            rows.read()
            if tensor.kept is None
            else torch.from_numpy(kept_rows(rows, tensor.kept)[1])
        )
        gap = (exact.to(tensor.torch_dtype).float() - exact).abs() / exact.abs().clamp_min(1e-30)
        worst = max(worst, float(gap.max()))
    return worst
