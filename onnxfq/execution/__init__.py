"""How models are run: two forms side by side, float values of tensors, toggled quantizers, a cluster."""
