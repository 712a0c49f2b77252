"""ONNX graphs: copied layers, rewritten operators, files on disk."""
