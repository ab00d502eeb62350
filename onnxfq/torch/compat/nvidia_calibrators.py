"""NVIDIA's document, pytorch-quantization: calibrators, and their searches in a histogram of magnitudes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxfq.errors import SpecError, StatisticsError, nearest

UNSEEN = "the calibrator saw no tensor with values; enable_calib() and run data first"


def largest_magnitude(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the largest magnitude of x; with axes, of each index, and of x's rank."""
    magnitude = x.detach().abs()
    if not axes:
        return magnitude.amax()
    rest = [d for d in range(x.ndim) if d not in {axis % x.ndim for axis in axes}]
    return magnitude.amax(rest, keepdim=True)


class MaxCalibrator:
    """Largest magnitude of all tensors, for each index of `axis`."""

    def __init__(self, num_bits: int = 8, axis: int | tuple[int, ...] | None = None, unsigned: bool = False):
        """Start without a tensor; width and sign do not change the result."""
        self.axes = (axis,) if isinstance(axis, int) else tuple(axis or ())
        self.reset()

    def reset(self) -> None:
        """Forget all tensors."""
        self.seen: Tensor | None = None

    def collect(self, x: Tensor) -> None:
        """Take x into account."""
        amax = largest_magnitude(x, self.axes)
        self.seen = amax if self.seen is None else torch.maximum(self.seen, amax)

    def compute_amax(self) -> Tensor:
        """Return the magnitudes. Raises StatisticsError without a tensor."""
        if self.seen is None:
            raise StatisticsError(UNSEEN)
        return self.seen


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


class HistogramCalibrator:
    """Histogram of magnitudes whose bins have the width that the first tensor gives them."""

    def __init__(
        self, num_bits: int = 8, axis: None = None, unsigned: bool = False, num_bins: int = 2048
    ) -> None:
        """Start without a tensor. Raises SpecError for an axis: there is one histogram."""
        if axis is not None:
            raise SpecError(f"HistogramCalibrator has one amax, got axis {axis}; use calib_method='max'")
        self.levels = 1 << (num_bits - (not unsigned))
        self.num_bins = num_bins
        self.reset()

    def reset(self) -> None:
        """Forget all tensors."""
        self.counts: NDArray[np.float64] = np.zeros(0)
        self.width = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins, one more than there are bins."""
        return np.arange(len(self.counts) + 1, dtype=np.float64) * self.width

    def collect(self, x: Tensor) -> None:
        """Count the magnitudes of x. A larger one appends bins of the same width."""
        values = x.detach().abs().double().flatten().cpu().numpy()
        top = float(values.max())
        if not math.isfinite(top):
            raise StatisticsError("a calibrator saw NaN or infinity; remove the samples that cause them")
        if top == 0 and not self.width:  # zeros alone give bins no width
            return
        self.width = self.width or top / self.num_bins
        bins = max(len(self.counts) or self.num_bins, math.ceil(top / self.width))
        places = np.minimum((values / self.width).astype(np.int64), bins - 1)
        counts = np.bincount(places, minlength=bins).astype(np.float64)
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def compute_amax(
        self, method: str = "entropy", *, stride: int = 1, start_bin: int = 128, percentile: float = 99.99
    ) -> Tensor:
        """Return one magnitude: of least divergence (entropy), least squared error (mse) or a percentile.

        Args:
            method: entropy, mse or percentile.
            stride: bins between two candidates of a search.
            start_bin: number of bins of the first candidate.
            percentile: share of the values below it, in percent.
        """
        if method not in SEARCHES:
            raise SpecError(
                f"method must be {', '.join(SEARCHES)}, got {method!r}{nearest(method, SEARCHES)}"
            )
        if not self.width:
            raise StatisticsError(UNSEEN)
        bins = len(self.counts)
        if stride < 1 or not 1 <= start_bin < bins:
            raise SpecError(f"stride {stride} must be at least 1, start_bin {start_bin} from 1 to {bins - 1}")
        if not 0 < percentile <= 100:
            raise SpecError(f"percentile {percentile} must be above 0 and at most 100")
        ends = range(start_bin, bins + 1, stride)
        amax = SEARCHES[method](self.counts, self.edges, self.levels, ends, percentile)
        return torch.tensor(amax, dtype=torch.float32)
