"""TensorRT: policy, rewrites, rules, builder and tools."""
