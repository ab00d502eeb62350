"""TensorRT's builder: a process of its own, profiles, the layers of an engine."""
