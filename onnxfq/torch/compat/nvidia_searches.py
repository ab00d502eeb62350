"""NVIDIA's document, pytorch-quantization: searches for amax in a histogram of magnitudes.

Each takes counts [bins], edges [bins + 1], the number of levels of a magnitude, the numbers of bins to try
and a percentile, and returns one magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _entropy(counts: Array, edges: Array, levels: int, ends: Sequence[int], percentile: float) -> float:
    counts = counts.copy()
    counts[0] = counts[1]  # zeros are exact in any grid
    divergences = [_divergence(counts, levels, end) for end in ends]
    last = len(divergences) - 1 - int(np.argmin(divergences[::-1]))
    return float(edges[ends[last]])


def _divergence(counts: Array, levels: int, end: int) -> float:
    """Return Kullback and Leibler's divergence of the first `end` bins, put into `levels`, from all bins."""
    kept = counts[:end]
    group = np.arange(end) * levels // end
    filled = kept != 0
    sums = np.bincount(group, kept, levels)
    shares = sums / np.maximum(np.bincount(group, filled, levels), 1)
    found = np.where(filled, shares[group], 0.0)
    wanted = kept.copy()
    wanted[-1] += counts[end:].sum()
    p, q = wanted / wanted.sum(), found / max(found.sum(), 1e-300)
    if (q[p > 0] == 0).any():
        return float("inf")
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


def _mse(counts: Array, edges: Array, levels: int, ends: Sequence[int], percentile: float) -> float:
    centres = (edges[1:] + edges[:-1]) / 2
    tried = [end for end in ends if end < len(centres)]
    errors = []
    for end in tried:
        scale = centres[end] / (levels - 1)
        rounded = np.minimum(np.rint(centres / scale), levels - 1) * scale
        errors.append(float(((rounded - centres) ** 2 * counts).sum()))
    return float(centres[tried[int(np.argmin(errors))]])


def _percentile(counts: Array, edges: Array, levels: int, ends: Sequence[int], percentile: float) -> float:
    total = np.cumsum(counts / counts.sum())
    return float(edges[int(np.searchsorted(total, percentile / 100))])


SEARCHES: dict[str, Callable[..., Any]] = {"entropy": _entropy, "mse": _mse, "percentile": _percentile}
