"""TensorRT rules that Q/DQ models are checked against, by topic."""
