"""Remedies for a loss of accuracy, one a file, and the measurement that judges them."""
