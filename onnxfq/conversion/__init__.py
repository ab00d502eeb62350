"""Making a model that was quantized for ONNX Runtime into one that TensorRT takes."""
