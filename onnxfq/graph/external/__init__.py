"""Weights outside of the proto: in the model's files, or in a scratch file."""
