"""Quantized models of other tools as float models with ranges."""
