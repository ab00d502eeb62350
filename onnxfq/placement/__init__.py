"""Which tensors are quantized: rules that hold for every target, one a file."""
