"""Checkpoint to ONNX: readers, PyTorch modules, tracing, and the bundle they end in."""
