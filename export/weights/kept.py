"""The checkpoint's own codes in a graph: which form holds them, and what that changes.

One table decides. Integers around zero stay what they are, and codes of FP4 become twice their
value in INT8. Integers with zero points are shifted to lie around zero, and a second, small product
of the blocks' sums adds what the shift left out, in float32; so it does with minimums. `Prefer`
chooses others: exact, 4 bits less their zero points in INT8, one sum. Nothing is rounded but the
scales, and those only where the graph's element type is a 16-bit one. All forms but FP8 run on ONNX
Runtime, where products with them are one kernel, and from SM86 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.export.checkpoint.quantized.linear import CodeKind, StoredLinear, StoredRef
from draftrt.export.checkpoint.quantized.packing import E2M1
from draftrt.export.checkpoint.tensors import GraphTensor
from draftrt.export.weights.tensors import INT4_OPSET
from draftrt.quantization import Base, KeptForm, Prefer, Scheme, part_of

BLOCKS = (16, 32, 64, 128, 256)  # sizes that ONNX Runtime's kernels have
FP8_FROM = 89  # compute capability
TWICE = np.concatenate((2 * E2M1, -2 * E2M1)).astype(np.int8)
SLICE_ROWS = 512


@dataclass(frozen=True, slots=True)
class FormChoice:
    """What a graph is for.

    Attributes:
        opset: of it.
        sms: compute capabilities of the GPUs; empty for any from 86 on.
        prefer: which of several forms is taken; None for what runs fast everywhere.
    """

    opset: int
    sms: Sequence[int] = ()
    prefer: Prefer | None = None

    def has_fp8(self, *, is_rounded: bool) -> bool:
        """Whether FP8 codes are kept: where the GPUs have them, or where that is preferred."""
        is_wished = self.prefer is Prefer.SMALL or (self.prefer is Prefer.EXACT and is_rounded)
        return min(self.sms) >= FP8_FROM if self.sms else is_wished


def form_of(linear: StoredLinear, dtype: str, choice: FormChoice) -> KeptForm | None:
    """Return how a graph can hold a weight by its own codes; None where it cannot.

    Args:
        linear: how the checkpoint stores it.
        dtype: of the graph's elements.
        choice: what the graph is for.
    """
    opset = choice.opset
    width = linear.shape[1]
    block = None if linear.group >= width else linear.group
    if block is not None and (block not in BLOCKS or width % block or opset < INT4_OPSET):
        return None
    is_ordered = linear.order is not None
    if linear.kind is CodeKind.E4M3:
        is_kept = choice.has_fp8(is_rounded=dtype != "float32")
        return KeptForm(Scheme.FP8, block) if is_kept else None
    if linear.kind is CodeKind.E2M1:
        return KeptForm(Scheme.INT8, block)
    scheme = Scheme.INT4 if linear.bits == 4 and opset >= INT4_OPSET else Scheme.INT8
    if linear.zero_points is None and linear.minimums is None:
        return KeptForm(scheme, block, is_ordered)
    is_one_sum = linear.bits == 4 and linear.minimums is None
    if is_one_sum and (choice.prefer is Prefer.EXACT or scheme is Scheme.INT8):
        return KeptForm(Scheme.INT8, block, is_ordered)
    base = Base.ZEROS if linear.minimums is None else Base.MINIMUMS
    return KeptForm(scheme, block, is_ordered, base)


def keep_codes(tensors: Mapping[str, GraphTensor], choice: FormChoice) -> dict[str, GraphTensor]:
    """Return a graph's weights, each that can be held by its own codes marked so."""
    return {name: _marked(name, tensor, choice) for name, tensor in tensors.items()}


def _marked(name: str, tensor: GraphTensor, choice: FormChoice) -> GraphTensor:
    source = tensor.source
    if not isinstance(source, StoredRef) or part_of(name, is_product=True) is None:
        return tensor
    assert source.linear is not None
    return replace(tensor, kept=form_of(source.linear, tensor.dtype, choice))


def kept_rows(
    ref: StoredRef, form: KeptForm
) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32] | None]:
    """Return codes [n, in], scales [n] or [n, blocks], and the base [n, blocks] of a weight's rows.

    Codes are int8, or bytes of FP8, sorted by groups where these are not in order. The base is in
    scales (`Base.ZEROS`) or a weight (`Base.MINIMUMS`).
    """
    linear, start, stop = ref.linear, ref.first, ref.first + ref.shape[0]
    assert linear is not None
    codes, scales = linear.codes(start, stop), linear.scales(start, stop)
    order = order_of(ref)
    codes = codes if order is None else codes[:, order]
    zeros, base, middle = None, None, 1 << (linear.bits - 1)
    if linear.zero_points is not None:
        zeros = linear.zero_points(start, stop)
    if linear.kind is CodeKind.E2M1:
        codes, scales = TWICE[codes], scales * np.float32(0.5)
    elif form.base is not Base.NONE:
        is_shifted = codes.dtype == np.uint8  # else they lie around zero as they are
        if zeros is not None:
            base = middle * is_shifted - zeros.astype(np.float32)  # bytes would wrap around
        elif linear.minimums is not None:
            base = np.array(linear.minimums(start, stop), np.float32)
        codes = np.subtract(codes, np.uint8(middle)).view(np.int8) if is_shifted else codes
    elif zeros is not None:
        wide = np.repeat(zeros.astype(np.int8).T, linear.group, axis=0)[: codes.shape[1]]
        codes = np.subtract(codes.T, wide, dtype=np.int8, casting="unsafe").T  # 4 bits: no overflow
    if linear.kind is not CodeKind.E4M3:
        codes = codes.astype(np.int8, copy=False)
    return codes, np.array(scales[:, 0] if form.block is None else scales, order="C"), base


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
    base = f" and a product of sums with the {tensor.kept.base.value}" if tensor.kept.base else ""
    return f"their own codes as {tensor.kept.scheme.value}, a scale for {scales}{base}{order}"


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
        if tensor.kept is None:
            parts = [rows.read()]
        else:
            _, scales, base = kept_rows(rows, tensor.kept)
            parts = [torch.from_numpy(scales)]
            if base is not None and tensor.kept.base is Base.MINIMUMS:
                parts.append(torch.from_numpy(base))
        for exact in parts:
            held = exact.to(tensor.torch_dtype).float()
            gap = (held - exact).abs() / exact.abs().clamp_min(1e-30)
            worst = max(worst, float(gap.max()))
    return worst
