"""`pytorch_quantization.optim`: choices of the parameters that an optimizer trains."""
