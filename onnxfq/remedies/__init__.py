"""Remedies for a loss of accuracy: each turns a candidate into a better one, or says why not."""
