"""Interfaces of other libraries over the same quantizers."""
