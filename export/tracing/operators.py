"""The ONNX form of every PyTorch function that the modules use, by the function's name.

A form gets the recorder, the result on the examples, and the call's arguments; it binds the result
to the nodes that compute it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftrt.errors import ExportError
from draftrt.export.tracing.recorder import Form, Recorder, Size, plain

END = 2**63 - 1


def _binary(op: str, *, is_reversed: bool = False, compares: bool = False) -> Form:
    def form(rec: Recorder, out: Tensor, a: Any, b: Any) -> None:
        dtype = torch.result_type(plain(a), plain(b)) if compares else out.dtype
        names = [rec.name(a, dtype), rec.name(b, dtype)]
        rec.bind(out, rec.node(op, names[::-1] if is_reversed else names))

    return form


def _unary(op: str) -> Form:
    def form(rec: Recorder, out: Tensor, x: Tensor) -> None:
        rec.bind(out, rec.node(op, [rec.name(x, out.dtype)]))

    return form


def _cast(rec: Recorder, out: Tensor, x: Tensor, *_: Any, **__: Any) -> None:
    rec.bind(out, rec.name(x, out.dtype))


def _reshape(rec: Recorder, out: Tensor, x: Tensor, *shape: Any, **_: Any) -> None:
    sizes = list(rec.shape(out))
    is_open = [isinstance(size, Size) for size in sizes]
    if sum(is_open) == 1:
        sizes[is_open.index(True)] = -1
    rec.bind(out, rec.node("Reshape", [rec.name(x), rec.sizes(sizes)]))


def _expand(rec: Recorder, out: Tensor, x: Tensor, *shape: Any) -> None:
    given = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    sizes = [size if isinstance(size, Size) or int(size) >= 0 else 1 for size in given]
    rec.bind(out, rec.node("Expand", [rec.name(x), rec.sizes(sizes)]))


def _transpose(rec: Recorder, out: Tensor, x: Tensor, first: int, second: int) -> None:
    order = list(range(x.ndim))
    order[first], order[second] = order[second], order[first]
    rec.bind(out, rec.node("Transpose", [rec.name(x)], perm=order))


def _cat(rec: Recorder, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    if any(rec.is_open(tensor.shape[dim]) for tensor in tensors):
        rec.open_size(out, dim)
    rec.bind(out, rec.node("Concat", [rec.name(t, out.dtype) for t in tensors], axis=dim))


def _stack(rec: Recorder, out: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> None:
    axis = dim % out.ndim
    parts = [_unsqueezed(rec, rec.name(t, out.dtype), [axis]) for t in tensors]
    rec.bind(out, rec.node("Concat", parts, axis=axis))


def _chunk(rec: Recorder, out: tuple[Tensor, ...], x: Tensor, chunks: int, dim: int = 0) -> None:
    sizes = [part.shape[dim] for part in out]
    names = rec.node_outputs("Split", [rec.name(x), rec.sizes(sizes)], len(out), axis=dim)
    for part, name in zip(out, names, strict=True):
        rec.bind(part, name)


def _getitem(rec: Recorder, out: Tensor, x: Tensor, key: Any) -> None:
    """Slices, then single entries, then new axes."""
    keys = _whole_key(x, key)
    axis = 0
    cuts: list[tuple[int, slice]] = []
    single: list[tuple[int, int]] = []
    new: list[int] = []
    for place, one in enumerate(keys):
        if one is None:
            new.append(place - len(single))
            continue
        if isinstance(one, slice):
            if one.start is not None or one.stop is not None or one.step is not None:
                cuts.append((axis, one))
        else:
            single.append((axis, one))
        axis += 1
    name = rec.name(x)
    if cuts:
        starts = [0 if cut.start is None else cut.start for _, cut in cuts]
        ends = [END if cut.stop is None else cut.stop for _, cut in cuts]
        axes = [axis for axis, _ in cuts]
        if any(cut.step not in (None, 1) for _, cut in cuts):
            raise ExportError(f"indexing by {key!r} has no ONNX form in draftrt")
        name = rec.node("Slice", [name, *(rec.sizes(part) for part in (starts, ends, axes))])
    for axis, index in reversed(single):
        name = rec.node("Gather", [name, rec.constant(torch.tensor(index))], axis=axis)
    if new:
        name = _unsqueezed(rec, name, new)
    rec.bind(out, name)


def _whole_key(x: Tensor, key: Any) -> list[Any]:
    """Return an index as one entry an axis or new axis, an ellipsis written out."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(one, (Tensor, list)) for one in keys):
        raise ExportError(f"indexing by {key!r} has no ONNX form in draftrt")
    at = next((place for place, one in enumerate(keys) if one is Ellipsis), None)
    if at is not None:
        used = sum(one is not None for one in keys) - 1
        keys[at : at + 1] = [slice(None)] * (x.ndim - used)
    return keys


def _unsqueezed(rec: Recorder, name: str, axes: list[int]) -> str:
    return rec.node("Unsqueeze", [name, rec.constant(torch.tensor(axes))])


def _unsqueeze(rec: Recorder, out: Tensor, x: Tensor, dim: int) -> None:
    rec.bind(out, _unsqueezed(rec, rec.name(x), [dim % out.ndim]))


def _embedding(rec: Recorder, out: Tensor, ids: Tensor, table: Tensor, **_: Any) -> None:
    rec.bind(out, rec.node("Gather", [rec.name(table), rec.name(ids)], axis=0))


def _index_select(rec: Recorder, out: Tensor, x: Tensor, dim: int, index: Tensor) -> None:
    rec.bind(out, rec.node("Gather", [rec.name(x), rec.name(index)], axis=dim))


def _gather(rec: Recorder, out: Tensor, x: Tensor, dim: int, index: Tensor) -> None:
    rec.bind(out, rec.node("GatherElements", [rec.name(x), rec.name(index)], axis=dim))


def _index_copy(
    rec: Recorder, out: Tensor, x: Tensor, dim: int, index: Tensor, rows: Tensor
) -> None:
    """Write along an axis: with the axis in front, rows are written whole."""
    order = [dim, *(axis for axis in range(x.ndim) if axis != dim)]
    back = [order.index(axis) for axis in range(x.ndim)]
    front = [rec.node("Transpose", [rec.name(t)], perm=order) for t in (x, rows)]
    at = _unsqueezed(rec, rec.name(index), [1])
    written = rec.node("ScatterND", [front[0], at, front[1]])
    rec.bind(out, rec.node("Transpose", [written], perm=back))


def _arange(rec: Recorder, out: Tensor, end: int, **_: Any) -> None:
    zero, one = (rec.constant(torch.tensor(number)) for number in (0, 1))
    rec.bind(out, rec.node("Range", [zero, rec.node("Squeeze", [rec.size(end)]), one]))


def _zeros_like(rec: Recorder, out: Tensor, x: Tensor) -> Tensor | None:
    if not any(isinstance(size, Size) for size in rec.shape(out)):
        return torch.zeros(out.shape, dtype=out.dtype)
    zero = rec.constant(torch.zeros((), dtype=out.dtype))
    rec.bind(out, rec.node("Expand", [zero, rec.sizes(rec.shape(out))]))
    return None


def _softmax(rec: Recorder, out: Tensor, x: Tensor, dim: int) -> None:
    rec.bind(out, rec.node("Softmax", [rec.name(x)], axis=dim))


def _reduce(op: str) -> Form:
    def form(rec: Recorder, out: Tensor, x: Tensor, dim: int, keepdim: bool = False) -> None:
        axes = rec.constant(torch.tensor([dim]))
        rec.bind(out, rec.node(op, [rec.name(x), axes], keepdims=int(keepdim)))

    return form


def _argmax(rec: Recorder, out: Tensor, x: Tensor, dim: int) -> None:
    rec.bind(out, rec.node("ArgMax", [rec.name(x)], axis=dim, keepdims=0))


def _topk(rec: Recorder, out: Any, x: Tensor, k: int, dim: int = -1) -> None:
    names = rec.node_outputs("TopK", [rec.name(x), rec.constant(torch.tensor([k]))], 2, axis=dim)
    for part, name in zip(out, names, strict=True):
        rec.bind(part, name)


def _sort(rec: Recorder, out: Any, x: Tensor, dim: int = -1) -> None:
    count = rec.constant(torch.tensor([x.shape[dim]]))
    names = rec.node_outputs("TopK", [rec.name(x), count], 2, axis=dim, largest=0)
    for part, name in zip(out, names, strict=True):
        rec.bind(part, name)


def _masked_fill(rec: Recorder, out: Tensor, x: Tensor, mask: Tensor, value: Any) -> None:
    rec.bind(out, rec.node("Where", [rec.name(mask), rec.name(value, out.dtype), rec.name(x)]))


def _where(rec: Recorder, out: Tensor, mask: Tensor, a: Any, b: Any) -> None:
    rec.bind(out, rec.node("Where", [rec.name(mask), *(rec.name(v, out.dtype) for v in (a, b))]))


def _clamp(rec: Recorder, out: Tensor, x: Tensor, min: float) -> None:
    rec.bind(out, rec.node("Max", [rec.name(x), rec.name(min, out.dtype)]))


def _silu(rec: Recorder, out: Tensor, x: Tensor, **_: Any) -> None:
    name = rec.name(x)
    rec.bind(out, rec.node("Mul", [name, rec.node("Sigmoid", [name])]))


def _gelu(rec: Recorder, out: Tensor, x: Tensor, approximate: str = "none") -> None:
    rec.bind(out, rec.node("Gelu", [rec.name(x)], approximate=approximate))


def _rms_norm(
    rec: Recorder, out: Tensor, x: Tensor, shape: Any, weight: Tensor | None, eps: float
) -> None:
    scale = torch.ones(x.shape[-1]) if weight is None else weight
    name = rec.name(x)
    if rec.opset >= 23:
        norm = rec.node(
            "RMSNormalization", [name, rec.name(scale)], axis=-1, epsilon=eps, stash_type=1
        )
    else:
        axes = rec.constant(torch.tensor([-1]))
        mean = rec.node("ReduceMean", [rec.node("Mul", [name, name]), axes], keepdims=1)
        root = rec.node("Sqrt", [rec.node("Add", [mean, rec.name(eps, out.dtype)])])
        norm = rec.node("Mul", [rec.node("Div", [name, root]), rec.name(scale)])
    rec.bind(out, norm)


FORMS: Mapping[str, Form] = {
    "torch.Tensor.add": _binary("Add"),
    "torch.Tensor.sub": _binary("Sub"),
    "torch.Tensor.__rsub__": _binary("Sub", is_reversed=True),
    "torch.Tensor.mul": _binary("Mul"),
    "torch.Tensor.div": _binary("Div"),
    "torch.Tensor.pow": _binary("Pow"),
    "torch.Tensor.__pow__": _binary("Pow"),
    "torch.Tensor.__floordiv__": _binary("Div"),  # of whole numbers of one sign
    "torch.Tensor.matmul": _binary("MatMul"),
    "torch.Tensor.__and__": _binary("And"),
    "torch.Tensor.__eq__": _binary("Equal", compares=True),
    "torch.Tensor.ge": _binary("GreaterOrEqual", compares=True),
    "torch.Tensor.gt": _binary("Greater", compares=True),
    "torch.Tensor.le": _binary("LessOrEqual", compares=True),
    "torch.Tensor.lt": _binary("Less", compares=True),
    "torch.maximum": _binary("Max"),
    "torch.minimum": _binary("Min"),
    "torch.Tensor.__invert__": _unary("Not"),
    "torch.Tensor.abs": _unary("Abs"),
    "torch.cos": _unary("Cos"),
    "torch.sin": _unary("Sin"),
    "torch.exp": _unary("Exp"),
    "torch.atanh": _unary("Atanh"),
    "torch.relu": _unary("Relu"),
    "torch.sigmoid": _unary("Sigmoid"),
    "torch.tanh": _unary("Tanh"),
    "torch.Tensor.float": _cast,
    "torch.Tensor.to": _cast,
    "torch.Tensor.reshape": _reshape,
    "torch.Tensor.flatten": _reshape,
    "torch.Tensor.expand": _expand,
    "torch.Tensor.transpose": _transpose,
    "torch.Tensor.unsqueeze": _unsqueeze,
    "torch.Tensor.__getitem__": _getitem,
    "torch.Tensor.chunk": _chunk,
    "torch.cat": _cat,
    "torch.stack": _stack,
    "torch.nn.functional.embedding": _embedding,
    "torch.Tensor.index_select": _index_select,
    "torch.Tensor.gather": _gather,
    "torch.Tensor.index_copy": _index_copy,
    "torch.arange": _arange,
    "torch.zeros_like": _zeros_like,
    "torch.softmax": _softmax,
    "torch.Tensor.amax": _reduce("ReduceMax"),
    "torch.Tensor.sum": _reduce("ReduceSum"),
    "torch.Tensor.argmax": _argmax,
    "torch.topk": _topk,
    "torch.sort": _sort,
    "torch.Tensor.masked_fill": _masked_fill,
    "torch.where": _where,
    "torch.Tensor.clamp": _clamp,
    "torch.Tensor.clamp_min": _clamp,
    "torch.nn.functional.silu": _silu,
    "torch.nn.functional.gelu": _gelu,
    "torch.nn.functional.rms_norm": _rms_norm,
}
