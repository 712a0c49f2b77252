"""What runs a graph: ONNX Runtime, and TensorRT plans on CUDA."""
