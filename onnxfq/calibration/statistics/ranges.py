"""Ranges: their union, and the refusal of values that have none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.errors import StatisticsError


def refuse_nonfinite(tensor: str, nans: int, infinities: int, feed: int) -> None:
    """Raise StatisticsError if `tensor` has NaN or infinities in feed number `feed`."""
    if nans or infinities:
        raise StatisticsError(
            f"tensor {tensor!r} has {nans} NaN and {infinities} infinite values at feed {feed}; "
            "remove that sample, skip such values, or override the tensor to float"
        )


def widen_ranges(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the union of two sets of ranges, float32 [..., 2]."""
    return np.stack([np.minimum(one[..., 0], other[..., 0]), np.maximum(one[..., 1], other[..., 1])], axis=-1)
