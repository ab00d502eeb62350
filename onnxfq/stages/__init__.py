"""The stages, one a file."""
