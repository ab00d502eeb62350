"""Weights that move between a model and a checkpoint."""
