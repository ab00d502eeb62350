"""Patterns of several nodes, one a file, matched without edits."""
