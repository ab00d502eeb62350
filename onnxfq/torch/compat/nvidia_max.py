"""NVIDIA's document, pytorch-quantization: `MaxCalibrator`."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxfq.errors import StatisticsError

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
