"""ONNX Runtime and the kernels: the only package that imports onnxruntime, through `runtime.ort`."""
