"""Causes of a bad quantized file, a family a file."""
