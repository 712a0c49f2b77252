"""Where a written graph is not the one that the same facts give now, node by node.

No number is computed and no weight is read: operators, attributes, what each node reads, constants,
element types and sizes are equal or they are not, in every precision alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 4  # nodes named of those with the same difference


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDifference:
    """One node that is not as the facts give it.

    Attributes:
        node: its name.
        op: its operator.
        what: the difference, as ``has epsilon 0.1, expected 1e-06``.
    """

    node: str
    op: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDifferences:
    """How a written graph differs from an expected one.

    Attributes:
        nodes: its nodes, in order; then those that it lacks.
        constants: constants of its own that have another content.
        types: inputs, outputs and weights of another element type or size, missing or left over.
    """

    nodes: tuple[NodeDifference, ...]
    constants: tuple[str, ...]
    types: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Return a sentence for each difference, one for equal ones of several nodes."""
        alike: dict[tuple[str, str], list[str]] = {}
        for one in self.nodes:
            alike.setdefault((one.op, one.what), []).append(one.node)
        return [_told(*key, names) for key, names in alike.items()] + list(self.constants)


def _told(op: str, what: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{op} {names[0]} {what}"
    rest = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} {op} nodes, {', '.join(names[:SHOWN])}{rest}: each {what}"


def graph_differences(found: Any, expected: Any) -> GraphDifferences:
    """Compare two models, ``onnx.ModelProto``, whose weights are not loaded.

    Args:
        found: as it lies in a file.
        expected: as it would be written.
    """
    opset = next((one.version for one in expected.opset_import if not one.domain), 0)
    types = list(_types(found.graph, expected.graph))
    wrong = [one for one in found.opset_import if not one.domain and one.version != opset]
    types += [f"opset {one.version}, expected {opset}" for one in wrong]
    return GraphDifferences(
        nodes=tuple(_nodes(found.graph.node, expected.graph.node, opset)),
        constants=tuple(_constants(found.graph, expected.graph)),
        types=tuple(types),
    )


def _nodes(found: Sequence[Any], expected: Sequence[Any], opset: int) -> Iterable[NodeDifference]:
    wanted = {_key(node): node for node in expected}
    there = set()
    for node in found:
        there.add(_key(node))
        other = wanted.get(_key(node))
        if other is None:
            yield _difference(node, "is there and should not be")
            continue
        if node.op_type != other.op_type or node.domain != other.domain:
            yield _difference(node, f"is {node.op_type}, expected {other.op_type}")
            continue
        for what in (*_attributes(node, other, opset), *_operands(node, other)):
            yield _difference(node, what)
    order = [_key(node) for node in found if _key(node) in wanted]
    if order != [key for key in wanted if key in there] and order == list(dict.fromkeys(order)):
        yield NodeDifference(node="nodes", op="all", what="stand in another order")
    for key, node in wanted.items():
        if key not in there:
            yield _difference(node, "is missing")


def _key(node: Any) -> str:
    """Return what tells a node from others: its name, else what it makes."""
    return str(node.name or f"of {node.output[0]}")


def _difference(node: Any, what: str) -> NodeDifference:
    return NodeDifference(node=_key(node), op=node.op_type, what=what)


def _attributes(node: Any, other: Any, opset: int) -> Iterable[str]:
    got, want = _values(node, opset), _values(other, opset)
    for name in sorted({*got, *want}):
        if got.get(name) != want.get(name):
            yield f"has {name} {_shown(got.get(name))}, expected {_shown(want.get(name))}"


def _values(node: Any, opset: int) -> Mapping[str, Any]:
    """Return a node's attributes by name, those that are left out as the operator defines them."""
    import onnx

    values = {}
    if onnx.defs.has(node.op_type, opset, node.domain):
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        for name, one in schema.attributes.items():
            if one.default_value.name:
                values[name] = _value(one.default_value)
    return values | {one.name: _value(one) for one in node.attribute}


def _value(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value).tolist()
    is_message = hasattr(value, "SerializeToString")
    return value.SerializeToString() if is_message else value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, float):
        short = f"{value:.6g}"
        return short if _is_float32(value, short) else repr(value)
    return f"{value!r:.60}"


def _is_float32(value: float, short: str) -> bool:
    """Whether a short form stands for the float32 number."""
    import numpy as np

    return bool(np.float32(short) == np.float32(value))


def _operands(node: Any, other: Any) -> Iterable[str]:
    for verb, got, want in (
        ("reads", node.input, other.input),
        ("makes", node.output, other.output),
    ):
        if list(got) == list(want):
            continue
        pairs = [(a, b) for a, b in zip(got, want, strict=False) if a != b]
        if len(got) != len(want) or not pairs:
            yield f"{verb} {list(got)}, expected {list(want)}"
        for a, b in pairs if len(got) == len(want) else ():
            yield f"{verb} {a or 'nothing'}, expected {b or 'nothing'}"


def _types(found: Any, expected: Any) -> Iterable[str]:
    for kind in ("input", "output"):
        got = {one.name: _type(one) for one in getattr(found, kind)}
        want = {one.name: _type(one) for one in getattr(expected, kind)}
        yield from _compared(kind, got, want)
        if set(got) == set(want) and list(got) != list(want):
            yield f"{kind}s {list(got)}, expected the order {list(want)}"
    weights = [
        {one.name: _kind(one.data_type, one.dims) for one in graph.initializer}
        for graph in (found, expected)
    ]
    yield from _compared("weight", *weights)


def _compared(kind: str, got: Mapping[str, str], want: Mapping[str, str]) -> Iterable[str]:
    alike: dict[tuple[str, str], list[str]] = {}
    for name in (*want, *(name for name in got if name not in want)):
        pair = (got.get(name, "missing"), want.get(name, "none"))
        if pair[0] != pair[1]:
            alike.setdefault(pair, []).append(name)
    for (a, b), names in alike.items():
        rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"{kind} {', '.join(names[:SHOWN])}{rest}: {a}, expected {b}"


def _type(value: Any) -> str:
    kind = value.type.tensor_type
    sizes = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
    return _kind(kind.elem_type, sizes)


def _kind(number: int, sizes: Iterable[Any]) -> str:
    import onnx

    known: Callable[[int], str] = onnx.TensorProto.DataType.Name
    name = known(number).lower() if number in onnx.TensorProto.DataType.values() else str(number)
    return f"{name.replace('float8e4m3fn', 'fp8')} {list(sizes)}"


def _constants(found: Any, expected: Any) -> Iterable[str]:
    """Compare what the expected graph holds itself; weights that lie elsewhere are not read."""
    import onnx

    held = {one.name: one for one in found.initializer}
    for want in expected.initializer:
        got = held.get(want.name)
        if want.data_location == onnx.TensorProto.EXTERNAL or got is None:
            continue
        if got.data_location == onnx.TensorProto.EXTERNAL:
            yield f"constant {want.name} lies in a file, expected in the graph"
        elif got.data_type == want.data_type and list(got.dims) == list(want.dims):
            a, b = (onnx.numpy_helper.to_array(one) for one in (got, want))
            if a.tobytes() != b.tobytes():
                yield f"constant {want.name} is {a.tolist()!s:.60}, expected {b.tolist()!s:.60}"
