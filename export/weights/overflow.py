"""Where a module leaves the range of float16: the tensor by name, how large it is, the way out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from draftrt.errors import ExportError
from draftrt.export.tracing.fp16_peaks import Fp16Peaks
from draftrt.export.tracing.names import LAYER

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
WAY_OUT = {
    "float16": "use --precision bf16 or fp32; `draftrt validate ranges` shows float16's room",
    "bfloat16": "use --precision fp32",
}


def is_finite(arrays: Iterable[Any]) -> bool:
    """Whether no floating-point array holds an infinity or NaN."""
    kinds = (np.asarray(one) for one in arrays)
    return all(bool(np.isfinite(one).all()) for one in kinds if one.dtype.kind == "f")


def overflow(name: str, got: float, dtype: str = "float16", where: str = "") -> ExportError:
    """Return the refusal of numbers that an element type does not hold.

    Args:
        name: of the tensor.
        got: the largest magnitude in it.
        dtype: the element type.
        where: what was computed, in words.
    """
    reached = f"{got:.6g}" if math.isfinite(got) else "more than that"
    behind = f" ({where})" if where else ""
    return ExportError(
        f"{dtype} overflows in {name}: got {reached}, largest {LARGEST[dtype]:.6g}{behind}",
        hint=WAY_OUT[dtype],
    )


def check_held(name: str, content: Tensor, held: Tensor, dtype: str) -> None:
    """Refuse a weight with a number that a 16-bit element type does not hold.

    Args:
        name: of the weight.
        content: as the checkpoint has it.
        held: the same in the element type.
        dtype: the element type.

    Raises:
        ExportError: names the weight.
    """
    if held.element_size() == 2 and bool(torch.isinf(held).any()):
        raise overflow(name, float(content.abs().max()), dtype, "a weight")


def overflow_in(
    module: nn.Module, run: Callable[[], object], where: str, *, layer: int | None = None
) -> ExportError | None:
    """Run a module once more and return the refusal of the first float16 tensor not finite.

    Args:
        module: as it computes.
        run: calls it.
        where: what is computed, in words.
        layer: the layer of the model that is the module's only one; None for a whole model.

    Returns:
        None where no float16 tensor overflows.
    """
    watch = _First(module)
    with torch.no_grad(), watch:
        run()
    if not watch.name:
        return None
    name = watch.name
    if layer is not None:
        name = LAYER.sub(lambda match: f"{match[1]}{layer}.", name)
    return overflow(name, watch.got, where=where)


class _First(Fp16Peaks):  # type: ignore[no-untyped-call]
    """Finds the first float16 tensor that is not finite.

    Attributes:
        name: of the point; empty while there is none.
        got: the magnitude that it has in float32.
    """

    def __init__(self, module: nn.Module) -> None:
        self.name, self.got = "", math.inf
        super().__init__(module)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator; of the first that overflows also in float32."""
        was_found = bool(self.name)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.name and not was_found:
            self.got = _in_float32(func, args, kwargs or {})
        return out

    def _note(self, name: str, tensor: Tensor) -> None:
        super()._note(name, tensor)
        if not self.name and self.largest.get(name) == math.inf:
            self.name = name


def _in_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the largest magnitude that an operator makes in float32; infinite if unknown."""

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    rest = {name: value for name, value in kwargs.items() if name != "dtype"}
    try:
        out = func(*tree_map(wide, args), **tree_map(wide, rest))
    except RuntimeError:
        return math.inf
    return float(out.abs().amax()) if isinstance(out, Tensor) and out.numel() else math.inf
