"""Frames of a tone whose frequency is found."""

from __future__ import annotations

import numpy as np

METRIC = "frames within 50 cents"
CENTS = 50


def score(outputs: list[np.ndarray], truth: np.ndarray) -> list[tuple[float, float]]:
    """Return the frames within CENTS of the frequencies `truth` in Hz, and the number of all."""
    found = np.maximum(outputs[0][0].astype(np.float64), 1e-6)
    frames = min(len(found), len(truth))
    off = 1200 * np.abs(np.log2(found[:frames] / truth[:frames]))
    return [(float((off <= CENTS).sum()), float(frames))]
