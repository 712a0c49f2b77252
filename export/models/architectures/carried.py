"""Rows that a call leaves to the next one, which is told how many of them stand.

A layer with a state cannot go back. So a call of n rows returns its state as it was before the last
ones, and what those rows would do to it; the next call lets the first so many of them act, as many
as were kept. A call of more rows than can be carried lets its own first rows act at once.

The window of a causal convolution is such a state: the inputs before the carried rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Carried:
    """One call's rows and those carried into it, as every layer with a state sees them.

    Attributes:
        is_new: [1] bool, whether the call begins a sequence; then nothing carried counts.
        kept: [1] int64, how many of the carried rows stand.
        stands: [C] bool, which of them.
        index: [R] int64, the call's own rows.
        first: [1] int64, the first of them that is carried on; those before it act at once.
        acts: [R] bool, which of them do.
        onward: [C] int64, the rows that are carried on; repeats of the last one behind them.
        lower: [R, R] bool, whether a row sees another: itself and those before.
        before: [R, R] bool, the same without itself.
        halves: for each power of two n below the most rows [R, R] bool: pairs of the second and the
            first half of one block of 2 n rows.
        carried_before: [C, C] bool, as ``before``, of the carried rows.
    """

    is_new: Tensor
    kept: Tensor
    stands: Tensor
    index: Tensor
    first: Tensor
    acts: Tensor
    onward: Tensor
    lower: Tensor
    before: Tensor
    halves: tuple[Tensor, ...]
    carried_before: Tensor


def carried_rows(
    context_length: Tensor,
    commit_rows: Tensor,
    carried_from: Tensor,
    *,
    rows: int,
    capacity: int,
    most_rows: int,
) -> Carried:
    """Return what the layers need to know of a call.

    Args:
        context_length: [1] int64, rows committed before this call, those of ``commit_rows`` too.
        commit_rows: [1] int64, rows of the previous call that stand.
        carried_from: [1] int64, row of the previous call that is the first one carried.
        rows: R.
        capacity: C, rows that can be carried.
        most_rows: that a call can have.
    """
    index = torch.arange(rows, device=context_length.device)
    places = torch.arange(capacity, device=context_length.device)
    count = context_length + rows - context_length  # [1] int64, R
    first = (count - capacity).clamp_min(0)
    is_new, kept = context_length == 0, commit_rows - carried_from
    row, column = index[:, None], index[None]
    powers = [1 << power for power in range((most_rows - 1).bit_length())]
    return Carried(
        is_new=is_new,
        kept=kept,
        stands=(places < kept) & ~is_new,
        index=index,
        first=first,
        acts=index < first,
        onward=torch.minimum(places + first, count - 1),
        lower=row >= column,
        before=row > column,
        halves=tuple(
            (row // (2 * n) == column // (2 * n)) & (row // n > column // n) for n in powers
        ),
        carried_before=places[:, None] > places[None],
    )


def slide(
    call: Carried, rows: Tensor, window: Tensor, inputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows behind the window that stands, and what is carried on.

    Args:
        call: the call.
        rows: [R, channels], inputs of a causal convolution.
        window: [kernel - 1, channels], those before the carried ones.
        inputs: [C, channels], the carried ones.

    Returns:
        [kernel - 1 + R, channels], then ``window`` and ``inputs`` for the next call.
    """
    length = window.shape[0]
    places = torch.arange(length, device=rows.device)
    last = torch.cat((window, inputs)).index_select(0, (places + call.kept).clamp_min(0))
    whole = torch.cat((torch.where(call.is_new, 0.0, last), rows))
    return (
        whole,
        whole.index_select(0, places + call.first),
        rows.index_select(0, call.onward),
    )


def convolve(whole: Tensor, kernel: Tensor) -> Tensor:
    """Return the causal convolution of each channel, [R, channels] float32.

    Args:
        whole: [kernel - 1 + R, channels], see `slide`.
        kernel: [channels, 1, kernel], the row's own factor last.
    """
    whole, reach = whole.float(), kernel.shape[2] - 1
    out = whole[reach:] * kernel[:, 0, reach]
    for tap in range(reach):
        out = out + whole[tap : tap - reach] * kernel[:, 0, tap]
    return out
