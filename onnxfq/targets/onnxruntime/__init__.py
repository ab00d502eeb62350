"""ONNX Runtime as a target: policy and releases."""
