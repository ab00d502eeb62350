"""ONNX models and graphs."""
