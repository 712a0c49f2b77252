"""Records what a module computes as ONNX nodes, while it runs on examples.

Inside `Recorder` every PyTorch function goes through a table of ONNX forms
(`draftrt.export.tracing.operators`). Its result on the examples tells shape and element type; what
depends on no input becomes a constant. Weights are examples too, of one element repeated, and
whatever would read many of them is not computed. Open sizes are numbers that occur nowhere else;
handed to a module, they remember where they come from and refuse to be compared.

A node is named after the module that computes (`draftrt.export.tracing.names`). What a layer
computes from nothing of its own is no layer's, and all of them share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from draftrt.dtypes import BY_NAME
from draftrt.errors import ExportError
from draftrt.export.tracing.names import Named, Watch, current_path, heard_by, is_of_a_layer

LONGEST_COUNT = 256
SPARED: Mapping[str, Callable[..., Sequence[int]]] = {
    # Functions whose result would read weights or caches: the shape of the result.
    "torch.nn.functional.embedding": lambda ids, table, **_: (*ids.shape, *table.shape[1:]),
    "torch.Tensor.index_select": lambda x, dim, index: (
        *x.shape[:dim],
        *index.shape,
        *x.shape[dim + 1 :],
    ),
    "torch.Tensor.gather": lambda x, dim, index: index.shape,
    "torch.Tensor.index_copy": lambda x, *_: x.shape,
}
Form = Callable[..., Any]
_current: list[Recorder] = []


def current() -> Recorder | None:
    """Return the recorder that is at work, None outside of any."""
    return _current[-1] if _current else None


class Recorder(TorchFunctionMode):
    """One recording.

    Attributes:
        opset: ONNX opset version of the nodes.
        nodes: what was recorded, in order.
        constants: name to content.
        values: name to example of every value of the graph.
        titles: recorded name to the name that the module gives a value.
    """

    def __init__(self, opset: int, forms: Mapping[str, Form]) -> None:
        super().__init__()
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}
        self._forms = forms
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []
        self._seen: dict[object, tuple[str, ...]] = {}
        self._sizes: dict[int, Callable[[], str]] = {}
        self._counts: dict[str, int] = {}
        self._inputs: set[str] = set()
        self.titles: dict[str, str] = {}
        self._heard = ExitStack()

    def __enter__(self) -> Recorder:
        """Begin to record."""
        _current.append(self)
        self._heard.enter_context(heard_by(Watch(self._title)))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        """End the recording."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._heard.close()
        _current.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one call."""
        kwargs = dict(kwargs or {})
        name = str(resolve_name(func))
        if name == "torch.Tensor.shape.__get__":
            return self.shape(args[0])
        flat = list(_flat([*args, *kwargs.values()]))
        is_fact = name in ("torch.Tensor.dtype.__get__", "torch.Tensor.device.__get__")
        if is_fact or not any(self._is_open(item) for item in flat):
            return func(*args, **kwargs)
        form = self._forms.get(name)
        if form is None:
            raise ExportError(
                f"{name} has no ONNX form in draftrt",
                hint="a defect of draftrt: add it to export/tracing/operators.py",
            )
        given, options = plain(args), plain(kwargs)
        if name in SPARED:
            table = given[1] if name.endswith("embedding") else given[0]
            out = torch.empty(SPARED[name](*given, **options), dtype=table.dtype)
        else:
            out = func(*given, **options)
        if id(out) in self._names:
            return out  # nothing to do, as for float() of float32
        result = form(self, out, *args, **kwargs)
        return out if result is None else result

    def forget(self) -> None:
        """Let go of the examples; what was recorded stays."""
        for held in (self._kept, self._names, self._sizes, self._seen, self.values):
            held.clear()

    def input(self, name: str, tensor: Tensor, open_axes: Sequence[int] = ()) -> Tensor:
        """Make an example an input or a weight of the graph."""
        self.bind(tensor, name)
        self._inputs.add(name)
        for axis in open_axes:
            self.open_size(tensor, axis)
        return tensor

    def open_size(self, tensor: Tensor, axis: int) -> None:
        """Say that a size of a tensor is open, and so is every size of that number."""
        read = lambda: self.node("Shape", [self.name(tensor)], start=axis, end=axis + 1)  # noqa: E731
        self._sizes.setdefault(tensor.shape[axis], read)

    def is_open(self, size: int) -> bool:
        """Return whether a number stands for an open size."""
        return size in self._sizes

    def bind(self, tensor: Tensor, name: str) -> None:
        """Say that a tensor is the value ``name``; the tensor is kept, so its identity is too."""
        if id(tensor) in self._names and self._names[id(tensor)] != name:
            raise ExportError(f"one tensor is both {self._names[id(tensor)]} and {name}")
        self._names[id(tensor)] = name
        self._kept.append(tensor)
        self.values.setdefault(name, tensor)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return a tensor's sizes, open ones as `Size`."""
        return tuple(
            Size.of(s, self.combine) if s in self._sizes else s for s in tuple(tensor.shape)
        )

    def combine(self, op: str, a: int, b: int, value: int) -> int:
        """Return the size that arithmetic on sizes gives."""
        self._sizes.setdefault(value, lambda: self.node(op, [self.size(a), self.size(b)]))
        return Size.of(value, self.combine)

    def size(self, value: int) -> str:
        """Return the name of an int64 [1] value that holds a size, open or not."""
        if not isinstance(value, Size):
            return self.constant(torch.tensor([value]))
        return self._sizes[int(value)]()

    def sizes(self, shape: Sequence[int]) -> str:
        """Return the name of an int64 vector of sizes."""
        if not any(isinstance(size, Size) for size in shape):
            return self.constant(torch.tensor([int(size) for size in shape]))
        return self.node("Concat", [self.size(size) for size in shape], axis=0)

    def name(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of a tensor, number or open size, cast where its type is another."""
        if isinstance(value, Size):
            return self.size(value)
        if not isinstance(value, Tensor):
            return self.constant(torch.tensor(value, dtype=dtype))
        if id(value) not in self._names:
            return self.constant(value if dtype is None else value.to(dtype))
        name = self._names[id(value)]
        if dtype is None or dtype == value.dtype:
            return name
        return self.node("Cast", [name], to=onnx_type(dtype))

    def constant(self, content: Tensor) -> str:
        """Return the name of a constant; a long count is a node, which takes no room."""
        raw = content.detach().contiguous()
        if raw.ndim == 1 and len(raw) > LONGEST_COUNT and torch.equal(raw, torch.arange(len(raw))):
            bounds = [self.constant(torch.tensor(number)) for number in (0, len(raw), 1)]
            return self.node("Range", bounds)
        key = ("constant", raw.dtype, tuple(raw.shape), _bytes(raw))
        if key not in self._seen:
            name = self._new("constant")
            self.constants[name] = raw
            self._seen[key] = (name,)
        return self._seen[key][0]

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Record a node with one output; the same node is recorded once. Return the output."""
        return self.node_outputs(op, inputs, 1, **attributes)[0]

    def node_outputs(
        self, op: str, inputs: Sequence[str], count: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Record a node with several outputs."""
        import onnx

        key = (op, tuple(inputs), str(sorted(attributes.items())), count)
        if key not in self._seen:
            path = self._path(op, inputs)
            outputs = tuple(self._new(op, path) for _ in range(count))
            self.nodes.append(
                onnx.helper.make_node(op, list(inputs), list(outputs), outputs[0], **attributes)
            )
            self._seen[key] = outputs
        return self._seen[key]

    def copy(self, name: str) -> str:
        """Record a copy of a value, for one that is two outputs; return its name."""
        import onnx

        made = self._new("Identity")
        self.nodes.append(onnx.helper.make_node("Identity", [name], [made], made))
        self.values[made] = self.values[name]
        return made

    def emit(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        *,
        dtype: torch.dtype,
        shape: Sequence[int],
    ) -> Tensor:
        """Record an operator that PyTorch has no function for; return its result."""
        names = ["" if value is None else self.name(value) for value in inputs]
        out = torch.empty([int(size) for size in shape], dtype=dtype)
        self.bind(out, self.node(op, names, **attributes))
        return out

    def _is_open(self, item: Any) -> bool:
        return isinstance(item, Size) or (isinstance(item, Tensor) and id(item) in self._names)

    def _title(self, name: Named, value: Tensor, into: Tensor | None) -> None:
        """Give a value the name that the module has for it; one that is named already keeps it."""
        recorded = self._names.get(id(value))
        if recorded is not None and recorded not in self._inputs:
            self.titles.setdefault(recorded, str(name))

    def _path(self, op: str, inputs: Sequence[str]) -> str:
        """Return whose a node is; a size is one number, whichever layer's cache it is read from."""
        path = current_path()
        is_size = op == "Shape" and inputs[0] in self._inputs
        of_layers = (is_of_a_layer(self.titles.get(name, name)) for name in inputs)
        return path if not is_of_a_layer(path + ".") or (any(of_layers) and not is_size) else ""

    def _new(self, op: str, path: str = "") -> str:
        kind = f"{path}.{op}" if path else op
        count = self._counts[kind] = self._counts.get(kind, -1) + 1
        return f"{kind}_{count}"


def onnx_type(dtype: torch.dtype) -> int:
    """Return the ONNX number of an element type."""
    return BY_NAME[str(dtype).removeprefix("torch.")].onnx


def constant_proto(name: str, content: Tensor) -> Any:
    """Return a constant as an ONNX tensor."""
    from onnx import helper

    raw = _bytes(content)
    return helper.make_tensor(name, onnx_type(content.dtype), tuple(content.shape), raw, raw=True)


def _bytes(content: Tensor) -> bytes:
    flat = content.reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _flat(items: Any) -> Iterator[Any]:
    if isinstance(items, (tuple, list)):
        for item in items:
            yield from _flat(item)
    elif isinstance(items, slice):
        yield from (items.start, items.stop, items.step)
    else:
        yield items


Combine = Callable[[str, int, int, int], int]  # ONNX operator, operands, result


class Size(int):
    """An open size: a number to compute shapes with, and the value in the graph it stands for."""

    _combine: Combine

    @classmethod
    def of(cls, value: int, combine: Combine) -> Size:
        """Return the open size that ``value`` stands for; ``combine`` records its arithmetic."""
        made = cls(value)
        made._combine = combine
        return made

    def __add__(self, other: int) -> int:
        return self._combine("Add", self, other, int(self) + int(other))

    def __radd__(self, other: int) -> int:
        return self + other

    def __sub__(self, other: int) -> int:
        return self._combine("Sub", self, other, int(self) - int(other))

    def __mul__(self, other: int) -> int:
        return self._combine("Mul", self, other, int(self) * int(other))

    def __rmul__(self, other: int) -> int:
        return self * other

    def _refuse(self, *other: object) -> Any:
        raise ExportError(
            "a module decides something by an open size, which a graph cannot follow",
            hint="a defect of draftrt, please report it",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    # what would give a plain number, and freeze the example's size into the graph
    __neg__ = __rsub__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = _refuse
    __hash__ = int.__hash__


def plain(value: Any) -> Any:
    """Return arguments of a call with open sizes as plain numbers."""
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, slice):
        return slice(plain(value.start), plain(value.stop), plain(value.step))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(plain(item) for item in value)
    return value
