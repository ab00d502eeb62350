"""Diagnosis of a quantized file that somebody else made: reading, measuring, causes, repairs."""
