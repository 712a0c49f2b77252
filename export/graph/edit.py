"""What every edit of an ONNX graph needs: who makes and who reads a value, attributes, places.

Loads neither onnx nor PyTorch before it is asked to. Data of initialisers that lie outside the file
is never read: `draftrt.export.graph.files` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftrt.onnx_session import read_onnx


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    """Give the model of an ONNX file to change, and write the file again."""
    import onnx

    model = read_onnx(path)
    yield model
    onnx.save(model, str(path))


def makers(graph: Any) -> dict[str, Any]:
    """Return the node that makes each value."""
    return {name: node for node in graph.node for name in node.output}


def readers(graph: Any) -> dict[str, list[Any]]:
    """Return the nodes that read each value, every node once, in the graph's order."""
    found: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            found.setdefault(name, []).append(node)
    return found


def replace_nodes(graph: Any, nodes: Sequence[Any]) -> None:
    """Let a graph consist of other nodes."""
    del graph.node[:]
    graph.node.extend(nodes)


def attributes_of(node: Any) -> dict[str, Any]:
    """Return a node's attributes, name to value."""
    import onnx

    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def place_of(tensor: Any) -> dict[str, str]:
    """Return where an initialiser's content lies: ``location``, ``offset``, ``length``.

    Empty where it lies in the file itself.
    """
    return {entry.key: entry.value for entry in tensor.external_data}


def put_place(tensor: Any, place: Mapping[str, str | int]) -> None:
    """State where an initialiser's content lies outside the file."""
    import onnx

    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
