"""Scores of tasks: each file turns the outputs for a sample into a part of a figure and its weight."""
