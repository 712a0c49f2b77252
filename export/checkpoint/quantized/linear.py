"""A linear as a checkpoint stores it: codes, scales, zero points and the order of its groups.

Every layout is read into this one description, and nothing after it knows layouts. Rows of outputs
are decoded where they are asked for: no whole model, and no whole matrix, is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from draftrt.export.checkpoint.quantized.packing import Array, e2m1, e4m3, matrix, widened
from draftrt.export.checkpoint.tensors import TensorRef

if TYPE_CHECKING:
    import torch

Rows = Callable[[int, int], Array]  # outputs start ... stop
Parts = Mapping[str, TensorRef]
FLOAT_SCALES = ("float32", "float16", "bfloat16")


class LinearError(Exception):
    """A module that cannot be read.

    Attributes:
        cause: what it shares with others that are told with it.
        message: what is wrong, with the module's name.
        hint: what to do; may be empty.
    """

    def __init__(self, cause: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.cause, self.message, self.hint = cause, message, hint


class CodeKind(str, Enum):
    """What the codes are."""

    INT = "int"
    E2M1 = "e2m1"
    E4M3 = "e4m3"


@dataclass(frozen=True, slots=True, eq=False)
class StoredLinear:
    """The weight [out, in] of a module: ``(code - zero point) * scale + minimum``.

    Attributes:
        name: the module's, in its checkpoint.
        layout: the publisher's, for people.
        shape: outputs and inputs.
        kind: of the codes.
        bits: of a code.
        group: inputs that share a scale; as many as there are where a row has one.
        codes: [n, in]: integers with the zero point of symmetric ones subtracted, or the bits of a
            float.
        scales: [n, groups] float32, all levels multiplied.
        zero_points: [n, groups] integers; None where zero is zero.
        minimums: [n, groups] float32, what code zero stands for; None where that is zero.
        order: [in], the group of each input; None for groups in order.
        files: where its tensors lie.
        num_bytes: of all of them.
    """

    name: str
    layout: str
    shape: tuple[int, int]
    kind: CodeKind
    bits: int
    group: int
    codes: Rows
    scales: Rows
    zero_points: Rows | None = None
    order: NDArray[np.int64] | None = None
    files: tuple[Path, ...] = ()
    num_bytes: int = 0
    minimums: Rows | None = None

    @property
    def num_groups(self) -> int:
        """Scales of an output."""
        return -(-self.shape[1] // self.group)

    def weight(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the weights of some outputs, [n, in]: one product in float32 each."""
        codes, scales = self.codes(start, stop), self.scales(start, stop)
        tables = {CodeKind.E2M1: e2m1, CodeKind.E4M3: e4m3}
        values = tables[self.kind]()[codes] if self.kind in tables else codes.astype(np.float32)
        count, width = values.shape
        is_plain = self.order is None and width % self.group == 0
        where = np.arange(width) // self.group if self.order is None else self.order

        def wide(one: Array) -> Array:
            return one[:, :, None] if is_plain else one[:, where]

        values = values.reshape(count, -1, self.group) if is_plain else values
        if self.zero_points is not None:
            values -= wide(self.zero_points(start, stop)).astype(np.float32)
        values *= wide(scales)
        if self.minimums is not None:
            values += wide(self.minimums(start, stop))
        return values.reshape(count, width)

    def describe(self) -> str:
        """Return the layout, bits, groups and zero points in words."""
        one = "a tensor or row" if self.group >= self.shape[1] else f"{self.group} inputs"
        kind = "" if self.kind is CodeKind.INT else f" {self.kind.value}"
        zeros = ", zero points" if self.zero_points is not None else ""
        zeros += ", minimums" if self.minimums is not None else ""
        order = ", inputs in the order of g_idx" if self.order is not None else ""
        return f"{self.layout}, {self.bits} bits{kind}, a scale for {one}{zeros}{order}"


@dataclass(frozen=True, slots=True)
class StoredRef(TensorRef):
    """The weight of a `StoredLinear`, or some of its rows, dequantised when it is read.

    Attributes:
        linear: what stores it.
        first: row of it that is this tensor's first.
    """

    linear: StoredLinear | None = field(default=None, compare=False)
    first: int = 0

    @property
    def files(self) -> tuple[Path, ...]:
        """Where its content lies."""
        assert self.linear is not None
        return self.linear.files

    @property
    def stored_bytes(self) -> int:
        """Bytes of these rows in the checkpoint."""
        assert self.linear is not None
        return self.linear.num_bytes * self.shape[0] // max(1, self.linear.shape[0])

    def rows(self, start: int, stop: int) -> TensorRef:
        """Return the rows ``start`` to ``stop``, still unread."""
        shape = (stop - start, *self.shape[1:])
        return replace(self, shape=shape, first=self.first + start)

    def read(self) -> torch.Tensor:
        """Return the weight, float32."""
        import torch

        assert self.linear is not None
        return torch.from_numpy(self.linear.weight(self.first, self.first + self.shape[0]))


def weight_of(linear: StoredLinear) -> StoredRef:
    """Return a linear's weight as an unread tensor."""
    return StoredRef(f"{linear.name}.weight", "float32", linear.shape, linear=linear)


def scales_by_group(name: str, ref: TensorRef, shape: tuple[int, int], group: int) -> Rows:
    """Return scales stored as [out, groups], [out], or one for all.

    Raises:
        LinearError: there are too many or too few.
    """
    out, width = shape
    wanted = -(-width // group)
    content = matrix(ref)
    if content.size == 1 and wanted == 1:
        one = widened(content.reshape(1, 1), ref.dtype)
        return lambda start, stop: np.broadcast_to(one, (stop - start, 1))
    if ref.shape == (out,) and wanted == 1:
        content = content.reshape(out, 1)
    if content.shape != (out, wanted):
        raise wrong_groups(name, ref, list(content.shape)[1:], width, group, wanted)
    return lambda start, stop: widened(content[start:stop], ref.dtype)


def wrong_groups(
    name: str, ref: TensorRef, got: list[int], width: int, group: int, wanted: int
) -> LinearError:
    """Return the fault of scales that are not as many as the groups."""
    count = got[0] if len(got) == 1 else ref.shape[0] if len(ref.shape) == 1 else 0
    groups = f"{count} group{'s' if count != 1 else ''}" if count else f"shape {list(ref.shape)}"
    return LinearError(
        "groups",
        f"{ref.name} has {groups}, and {width} inputs of {name} in groups of {group} need {wanted}",
        "group_size and the tensors disagree; nothing is guessed",
    )


def of_type(ref: TensorRef, *dtypes: str) -> TensorRef:
    """Return a tensor of one of these element types.

    Raises:
        LinearError: it is of another.
    """
    if ref.dtype in dtypes:
        return ref
    raise LinearError(
        f"type {ref.name.rpartition('.')[2]}",
        f"{ref.name} is {ref.dtype}, expected {' or '.join(dtypes)}",
    )


def part(name: str, parts: Parts, key: str, layout: str, what: str) -> TensorRef:
    """Return a module's tensor.

    Args:
        name: the module's.
        parts: its tensors by the last part of their names.
        key: of the tensor that is asked for.
        layout: for the message.
        what: what the tensor holds.

    Raises:
        LinearError: it is not there.
    """
    if key in parts:
        return parts[key]
    has = "codes" if key in ("qzeros", "g_idx") or "scale" in key else sorted(parts)
    raise LinearError(
        f"no {key}",
        f"{name} has {layout} {has} and no {what} ({name}.{key}): the checkpoint is incomplete",
        "download it again, or take the publisher's own files",
    )


def place(parts: Parts) -> tuple[tuple[Path, ...], int]:
    """Return the files and the bytes of a module's tensors."""
    files = dict.fromkeys(ref.file for ref in parts.values() if ref.file is not None)
    return tuple(files), sum(ref.num_bytes for ref in parts.values())
