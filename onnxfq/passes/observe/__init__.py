"""Passes that insert observers."""
