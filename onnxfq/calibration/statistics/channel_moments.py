"""Channel moments, a kind of statistics: largest magnitude, mean square and share of values that are not 0.

The sum of squares has two digits of `_DIGIT` bits, at places that the largest square decides. Each value adds
the same to a digit whatever the others are, so that batches and order of the data change no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import ObservedInput, input_kind

_DIGIT = 28
"""Bits of a digit: 2^25 of them have an exact sum in float64."""
_LOWEST = -308
"""Exponent of the lowest digit; squares of float32 are at least 2^-298."""
_BLOCK = 1 << 16
"""Values whose digits are found at once, for a processor's cache."""


@dataclass(frozen=True)
class ChannelMoments:
    """Moments of each channel of a tensor.

    Attributes:
        amax: largest magnitude, float64 [C].
        nonzeros: number of values that are not 0, int64 [C].
        squares: sum of squares, the digit of the largest square and the next, int64 [2, C].
        rows: number of values of each channel.
    """

    amax: NDArray[np.float64]
    nonzeros: NDArray[np.int64]
    squares: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def square(self) -> NDArray[np.float64]:
        """Mean square, float64 [C]."""
        place = _place(np.square(self.amax))
        digits = [np.ldexp(self.squares[n], _exponent(place - n)) for n in (0, 1)]
        return np.asarray(np.sum(digits, axis=0) / max(int(self.rows), 1))

    @property
    def live(self) -> NDArray[np.float64]:
        """Share of the values that are not 0, float64 [C]."""
        return self.nonzeros / max(int(self.rows), 1)

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Return the moments of both data sets. Raises ValueError for other channels."""
        if len(self.amax) != len(other.amax):
            raise ValueError(f"the parts have {len(self.amax)} and {len(other.amax)} channels")
        amax = np.maximum(self.amax, other.amax)
        squares = self._squares_at(amax) + other._squares_at(amax)
        return ChannelMoments(amax, self.nonzeros + other.nonzeros, squares, self.rows + other.rows)

    def _squares_at(self, amax: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the digits at the places of the larger `amax`."""
        down = _place(np.square(amax)) - _place(np.square(self.amax))
        high, low = self.squares
        return np.stack(
            [np.where(down == 0, high, 0), np.where(down == 0, low, np.where(down == 1, high, 0))]
        )


def _of_feed(observed: ObservedInput, x: NDArray[np.float32], feed: int) -> ChannelMoments:
    """Return the moments of one feed; NaN and infinities count as 0."""
    axis = observed.view.channel_axis % x.ndim
    shape = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    values = np.where(np.isfinite(x), x, np.float32(0)).reshape(shape)
    amax = np.abs(values).max(axis=(0, 2), initial=0.0).astype(np.float64)
    units = np.ldexp(1.0, -_exponent(_place(np.square(amax))))[:, None]
    squares = np.zeros((2, shape[1]), np.int64)
    wide = max(min(_BLOCK // max(shape[2], 1), shape[1]), 1)
    high = max(_BLOCK // max(wide * shape[2], 1), 1)
    for row, channel in product(range(0, shape[0], high), range(0, shape[1], wide)):
        part = slice(channel, channel + wide)
        rest = np.square(values[row : row + high, part], dtype=np.float64) * units[part]
        digit = np.floor(rest)
        squares[0, part] += digit.sum(axis=(0, 2)).astype(np.int64)
        rest -= digit
        squares[1, part] += np.floor(rest * 2.0**_DIGIT).sum(axis=(0, 2)).astype(np.int64)
    return ChannelMoments(
        amax, np.count_nonzero(values, axis=(0, 2)), squares, np.asarray(shape[0] * shape[2])
    )


def _place(squares: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return the number of the highest digit of each of `squares`."""
    return np.asarray((np.frexp(squares)[1] - _LOWEST - 1) // _DIGIT, np.int32)


def _exponent(place: NDArray[np.int32]) -> NDArray[np.int32]:
    return _LOWEST + _DIGIT * place


CHANNEL_MOMENTS = input_kind("channel_moments", "channel moments of ", ChannelMoments, _of_feed)
