"""Intersection over union of the masks of two maps of probability."""

from __future__ import annotations

import numpy as np

METRIC = "mask IoU to float"
LEAST = 0.3
"""Probability from which a pixel is in the mask, as DB detectors of text have it."""


def score(outputs: list[np.ndarray], truth: list[np.ndarray]) -> list[tuple[float, float]]:
    """Return the IoU with the mask of the float model's outputs; two empty masks are equal."""
    a, b = (one[0] > LEAST for one in (outputs, truth))
    union = (a | b).sum()
    return [(float((a & b).sum() / union) if union else 1.0, 1.0)]
