"""A draft graph with its hidden rows and logits made visible as further outputs.

A bundle's graph gives ids; whether the distributions behind them agree shows only inside. Both are
values of the graph, by the names that the module gives them. Nothing that is there is changed.
"""

from __future__ import annotations

from pathlib import Path

from draftrt.export.graph.edit import makers
from draftrt.export.tracing.names import HIDDEN

# output to the value that it is, under the first of these names that the graph has: logits that are
# neither multiplied nor capped nor cast are what the head returns
VALUES = {"hidden": (HIDDEN,), "base_logits": ("lm_head.output", "lm_head")}
AXIS = "draftrt.tap.axis"


def add_taps(path: Path) -> tuple[bytes, tuple[str, ...]]:
    """Return an ONNX file with further outputs, its weights left where they are.

    Args:
        path: the graph.

    Returns:
        The serialised model, whose external data lies in the folder of ``path``; and the names of
        the outputs added: ``hidden`` [1, n, H] and ``base_logits`` [1, n, W], both float32, those
        that the graph does not give already and has a value for.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    from draftrt.onnx_session import read_onnx

    model = read_onnx(path)
    graph, made = model.graph, makers(model.graph)
    have = {value.name for value in graph.output}
    added: list[str] = []
    for output, names in VALUES.items():
        value = next((name for name in names if name in made), None)
        if output in have or value is None:
            continue
        if not added:
            graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), AXIS))
        graph.node.append(
            helper.make_node("Unsqueeze", [value, AXIS], [output], f"{AXIS}.{output}")
        )
        graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, None))
        added.append(output)
    return model.SerializeToString(), tuple(added)
