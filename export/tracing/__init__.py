"""A PyTorch module written down as an ONNX graph while it runs."""
