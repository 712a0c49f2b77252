"""What runs the graphs of a bundle: the names, and the Python module behind each.

`draftrt.packages` says which extra installs a module.
"""

from __future__ import annotations

ONNXRUNTIME, TENSORRT_RTX, TENSORRT = "onnxruntime", "tensorrt-rtx", "tensorrt"
MODULES = {ONNXRUNTIME: "onnxruntime", TENSORRT_RTX: "tensorrt_rtx", TENSORRT: "tensorrt"}
BACKENDS = tuple(MODULES)
PLANNED = (TENSORRT_RTX, TENSORRT)  # those that run a plan, built from the graph
