"""The gated delta rule over a block of rows, behind rows that an earlier call carried on.

A row decays the state, reads it at its key, and writes the corrected value: with decay a, key k,
value v and rate b, ``u = b (v - k (a S))`` and ``S = a S + k u``. For a block of rows all u solve
one triangular system. Its inverse is found by blocks of doubling size, which is as exact as the
recurrence; a product of powers is not. Decays between two rows are summed pair by pair: a
difference of running sums cancels. (Yang et al., "Gated Delta Networks", has the block form.)

Everything is float32: keys of a sentence are alike, and decays range over ten decades.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftrt.export.models.architectures.carried import Carried


@dataclass(frozen=True, slots=True)
class Written:
    """What rows do to a state; G key heads, M value heads for each.

    Attributes:
        keys: [G, 1, R, K] float32, of length one.
        values: [G, M, R, V] float32; of carried rows the corrected ones.
        decays: [G, M, R] float32, logarithms, 0 or less.
    """

    keys: Tensor
    values: Tensor
    decays: Tensor


def advance(
    call: Carried, state: Tensor, carried: Written, queries: Tensor, rows: Written, rates: Tensor
) -> tuple[Tensor, Tensor, Written]:
    """Let rows read and write a state.

    Args:
        call: the call.
        state: [G, M, K, V] float32, before the carried rows.
        carried: rows of the previous call, C of them.
        queries: [G, 1, R, K] float32, scaled.
        rows: this call's.
        rates: [G, M, R] float32.

    Returns:
        What the queries read, [G, M, R, V]; the state before the rows that are carried on; those.
    """
    state = torch.where(call.is_new, 0.0, state)
    carried = _standing(call, carried)
    lower, before = call.lower.float(), call.before.float()
    decayed = rows.decays[..., None] * before  # [G, M, R, R]: of row t where it is later than i
    between = torch.exp(lower @ decayed)  # decay from behind row i to row t
    until = lower @ rows.decays[..., None]  # [G, M, R, 1], from the call's start
    behind = _later(carried.decays, call.carried_before)  # [G, M, C], of carried rows behind
    total = carried.decays.sum(dim=-1, keepdim=True)  # [G, M, 1]
    fade = torch.exp(until + total[..., None])  # [G, M, R, 1], of the state
    reach = torch.exp(until + behind[:, :, None])  # [G, M, R, C], of a carried row

    def read(by: Tensor) -> Tensor:
        """What is read of the state and the carried rows."""
        seen = (by @ carried.keys.transpose(-1, -2)) * reach
        return (by @ state) * fade + seen @ carried.values

    rate = rates[..., None]
    weights = rate * (rows.keys @ rows.keys.transpose(-1, -2)) * between * before
    corrected = _inverse(weights, call) @ (rate * (rows.values - read(rows.keys)))
    seen = (queries @ rows.keys.transpose(-1, -2)) * between * lower
    out = read(queries) + seen @ corrected
    # rows that are not carried on act on the state now, behind the carried ones
    acting = torch.where(call.acts, rows.decays, 0.0)
    now = acting.sum(dim=-1, keepdim=True)  # [G, M, 1]
    weight = torch.exp(_later(acting, call.before)) * call.acts.float()
    state = (
        torch.exp(total + now)[..., None] * state
        + carried.keys.transpose(-1, -2) @ (torch.exp(behind + now)[..., None] * carried.values)
        + rows.keys.transpose(-1, -2) @ (weight[..., None] * corrected)
    )
    onward = Written(
        rows.keys.index_select(2, call.onward),
        corrected.index_select(2, call.onward),
        rows.decays.index_select(2, call.onward),
    )
    return out, state, onward


def _standing(call: Carried, carried: Written) -> Written:
    """Return the carried rows; those that do not stand do nothing, whatever they hold."""
    stands = call.stands[:, None]
    return Written(
        torch.where(stands, carried.keys, 0.0),
        torch.where(stands, carried.values, 0.0),
        torch.where(call.stands, carried.decays, 0.0),
    )


def _later(decays: Tensor, before: Tensor) -> Tensor:
    """Return for each row [..., R] the sum of the decays behind it."""
    return (decays[..., None] * before.float()).sum(dim=-2)


def _inverse(weights: Tensor, call: Carried) -> Tensor:
    """Return the inverse of one plus strictly lower weights [G, M, R, R].

    Two inverted halves and what joins them, ``-B (join) A``, are an inverted block of twice the
    size.
    """
    rows = call.lower & ~call.before  # the diagonal
    inverse = rows.float()
    for halves in call.halves:
        inverse = inverse - inverse @ (weights * halves.float()) @ inverse
    return inverse
