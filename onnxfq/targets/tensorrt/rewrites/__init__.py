"""Graph rewrites that only TensorRT needs, one per file."""
