"""Stages of quantization, one per file."""
