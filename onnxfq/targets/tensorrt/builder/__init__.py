"""TensorRT's builder: separate process, layers of an engine."""
