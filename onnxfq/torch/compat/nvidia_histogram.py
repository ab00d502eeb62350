"""NVIDIA's document, pytorch-quantization: `HistogramCalibrator`."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxfq.errors import SpecError, StatisticsError, nearest
from onnxfq.torch.compat.nvidia_max import UNSEEN
from onnxfq.torch.compat.nvidia_searches import SEARCHES


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
