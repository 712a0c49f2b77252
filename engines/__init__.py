"""ONNX to TensorRT plans: what a device can run, how a build is started, watched and recorded."""
