"""Layers as rounding and sensitivity see them: toggles, costs, moments of inputs, weights."""
