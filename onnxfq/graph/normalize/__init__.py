"""Normalisation of a loaded model, one step a file."""
