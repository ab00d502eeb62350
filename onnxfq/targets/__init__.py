"""Targets: where each quantizes, what it refuses, its rewrites, rules and tools."""
