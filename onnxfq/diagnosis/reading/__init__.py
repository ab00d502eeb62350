"""A quantized file in one form: its quantizers with switches, its values, its float model, its copies."""
