"""Placement rules that hold for every target, one per file."""
