"""Interfaces of other libraries over the same quantizers, one document a file."""
