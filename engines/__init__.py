"""From the ONNX graphs of a bundle to TensorRT plans; knows nothing of checkpoints."""
