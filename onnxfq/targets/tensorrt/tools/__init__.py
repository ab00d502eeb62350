"""Commands and files of TensorRT's tools."""
