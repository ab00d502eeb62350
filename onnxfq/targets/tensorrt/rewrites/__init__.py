"""Rewrites of a graph that only TensorRT needs, one a file."""
