"""F1 of the boxes of a detector against the float model's, at an IoU of a half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

METRIC = "F1 to float"
LEAST, OVERLAP, SAME = 0.7, 0.5, 0.5
"""Least probability of a box, most overlap of two that are kept, least of two that are one."""


def overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the IoU of boxes [n, 4] and [m, 4] as [n, m]; corners are x0, y0, x1, y1."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    areas = [(one[:, 2:] - one[:, :2]).prod(-1) for one in (a, b)]
    return np.asarray(shared / (areas[0][:, None] + areas[1][None] - shared + 1e-9))


def found(outputs: list[np.ndarray]) -> NDArray[np.float64]:
    """Return the boxes of a detector with outputs of scores [1, n, 2] and boxes [1, n, 4]."""
    likely = outputs[0][0, :, 1]
    left = [one for one in np.argsort(-likely, kind="stable") if likely[one] > LEAST]
    boxes, kept = np.asarray(outputs[1][0], np.float64), []
    while left:
        kept.append(left[0])
        shares = overlaps(boxes[left[:1]], boxes[left[1:]])[0] if left[1:] else []
        left = [one for one, share in zip(left[1:], shares, strict=True) if share <= OVERLAP]
    return boxes[kept].reshape(-1, 4)


def score(outputs: list[np.ndarray], truth: list[np.ndarray]) -> list[tuple[float, float]]:
    """Return twice the number of shared boxes, and the number of all: their sums' ratio is F1."""
    got, wanted = found(outputs), found(truth)
    shares, pairs = overlaps(wanted, got), 0
    while shares.size and shares.max() >= SAME:
        row, column = np.unravel_index(shares.argmax(), shares.shape)
        shares[row], shares[:, column] = -1, -1
        pairs += 1
    return [(2.0 * pairs, float(len(got) + len(wanted)))]
