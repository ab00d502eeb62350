"""Error metrics between a candidate and its reference: mergeable sums, SQNR, cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the elements of reference r and candidate c in float64; the sums of batches add up.

    Attributes:
        elements: number of elements.
        signal: sum r^2.
        noise: sum (r-c)^2.
        power: sum c^2.
        product: sum r*c.
        largest: max |r-c|.
    """

    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    power: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    @staticmethod
    def from_arrays(reference: NDArray[np.generic], candidate: NDArray[np.generic]) -> ErrorSums:
        """Return the sums for one pair of arrays of the same shape."""
        r = np.asarray(reference, np.float64).ravel()
        c = np.asarray(candidate, np.float64).ravel()
        # Infinities and NaN show in the figures; NumPy's warnings would add nothing.
        with np.errstate(over="ignore", invalid="ignore"):
            # Equal infinities have error 0; their difference would be NaN.
            difference = np.where(r == c, 0.0, r - c)
            noise = float(difference @ difference)
            if math.isnan(noise):  # a NaN that both have is equal too, and counts as 0
                same = np.isnan(r) & np.isnan(c)
                r, c, difference = (np.where(same, 0.0, one) for one in (r, c, difference))
                noise = float(difference @ difference)
            return ErrorSums(
                elements=r.size,
                signal=float(r @ r),
                noise=noise,
                power=float(c @ c),
                product=float(r @ c),
                largest=float(np.abs(difference).max(initial=0.0)),
            )

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """Return the sums over the elements of both."""
        return ErrorSums(
            self.elements + other.elements,
            self.signal + other.signal,
            self.noise + other.noise,
            self.power + other.power,
            self.product + other.product,
            # max() would drop a NaN that comes second.
            float(np.maximum(self.largest, other.largest)),
        )

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise, 10*log10(sum r^2 / sum (r-c)^2), in dB; inf if equal."""
        return ratio_db(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between r and c; 1.0 if both are zero."""
        norm = math.sqrt(self.signal) * math.sqrt(self.power)
        if norm == 0.0:
            return 1.0 if self.signal == self.power else 0.0
        return self.product / norm


def ratio_db(signal: float, noise: float) -> float:
    """Return 10*log10(signal/noise) in dB; inf without noise, -inf without signal or for infinity or NaN."""
    if noise == 0.0:
        return math.inf
    ratio = signal / noise
    # Infinite noise gives ratio 0, which has no logarithm; NaN is as bad.
    return 10.0 * math.log10(ratio) if ratio > 0.0 else -math.inf
