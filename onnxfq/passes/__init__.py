"""Passes: one transformation of a graph per file, all with the contract of `pass_base`."""
