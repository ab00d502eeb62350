"""Checkpoints of other libraries: one format a file."""
