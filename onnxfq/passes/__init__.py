"""Transformations of a graph, one a file."""
