"""F1 of the notes that sound in each frame."""

from __future__ import annotations

import numpy as np

METRIC = "F1 of notes"
LEAST = 0.3
"""Probability from which a note sounds, as Basic Pitch has it."""


def score(outputs: list[np.ndarray], truth: np.ndarray) -> list[tuple[float, float]]:
    """Return twice the shared notes of the second output [1, frames, 88], and the number of all."""
    found = outputs[1][0] > LEAST
    return [(2.0 * float((found & truth).sum()), float(found.sum() + truth.sum()))]
