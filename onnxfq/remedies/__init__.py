"""Remedies for a loss of accuracy, one a file."""
