"""Windows of a stream: the error of a network that feeds its state back, from window to window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WINDOW = 64
"""Consecutive feeds whose error is one figure.

Windows of a voice detector and a speech enhancer without drift differ by what is said: the worst of 32 feeds
is 6 to 10 dB below the whole, of 64 it is 4 to 8, of 256 it is 1 to 4. A state drifts in hundreds of feeds.
"""

_BLOCK = 32
"""Feeds of a point of the line that tells whether the error grows."""

_LEAST_BLOCKS = 4
"""Points that make a line."""

_SURE = 3.0
"""Standard errors of its slope from which the error grows, over all feeds."""

_STILL = 1.0
"""The same in the later half: a loss that has ended there is no growth."""

_LEAST_LOSS_DB = 1.0
"""Loss over as many feeds again as were run from which it does."""

Places = NDArray[np.intp]


def divide_windows(steps: Sequence[int], counted: Sequence[bool]) -> list[Places]:
    """Return the places of the counted feeds in each window after the first of a recording.

    A recording of one window has that one. Recordings that go on side by side share windows, so that what is
    said in one of them matters less; a window with fewer than WINDOW feeds joins the one before.

    Args:
        steps: number of each feed in its recording, from 0.
        counted: whether the feed counts.
    """
    step, counts = np.asarray(steps), np.asarray(counted, np.bool_)
    recording = np.cumsum(step == 0)
    late = counts & ((step >= WINDOW) | (np.bincount(recording)[recording] <= WINDOW))
    counts = late if late.any() else counts
    found: list[Places] = []
    held = np.array([], np.intp)
    for number in np.unique(step[counts] // WINDOW):
        held = np.concatenate([held, np.flatnonzero(counts & (step // WINDOW == number))])
        if held.size >= WINDOW:
            found, held = [*found, held], held[:0]
    if held.size:
        found[-1:] = [np.concatenate([*found[-1:], held])]
    return found


def window_ratios(
    windows: Sequence[Places], signals: Sequence[float], noises: Sequence[float]
) -> list[float]:
    """Return the noise of a feed of each window over the signal of a feed of all windows; also inf and NaN.

    The signal is the mean over all windows, because silence is not an error.
    """
    signal, noise = np.asarray(signals, np.float64), np.asarray(noises, np.float64)
    size = float(signal[np.concatenate(windows)].mean())
    powers = [float(noise[places].mean()) for places in windows]
    return [power / size if size else math.inf if power else 0.0 for power in powers]


def fit_loss(steps: Sequence[int], signals: Sequence[float], noises: Sequence[float]) -> float:
    """Return the dB that the SQNR loses in a hundred feeds in the later half of recordings; 0 if not surely.

    Lines of least squares go through the SQNR of blocks of 32 feeds, of recordings side by side. The error
    grows if the slope after the first window is 3 standard errors below 0, that in the later half is one
    below, and as many feeds again would lose 1 dB.
    """
    step, longest = np.asarray(steps), max(steps) + 1
    count = longest // _BLOCK  # a last block that is not full says little
    signal, noise = (
        np.bincount(np.minimum(step // _BLOCK, count), np.asarray(powers, np.float64), count + 1)[:count]
        for powers in (signals, noises)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = 10.0 * np.log10(signal / noise)
    known = np.flatnonzero(np.isfinite(figures))
    whole = known[known * _BLOCK >= WINDOW]
    later = whole[whole * _BLOCK >= longest // 2]
    if later.size < _LEAST_BLOCKS:
        later = whole
    if later.size < _LEAST_BLOCKS:
        return 0.0
    _, surely = _fit_line(whole, figures[whole])
    slope, still = _fit_line(later, figures[later])
    grows = surely < -_SURE and still < -_STILL and -slope * count >= _LEAST_LOSS_DB
    return -slope / _BLOCK * 100 if grows else 0.0


def _fit_line(places: Places, values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope of a line of least squares, and how many of its standard errors it is from 0."""
    middle = places - places.mean()
    size = float(middle @ middle)
    slope = float(middle @ values) / size
    rest = values - values.mean() - slope * middle
    error = math.sqrt(float(rest @ rest) / (places.size - 2) / size)
    return slope, slope / error if error else math.copysign(math.inf, slope) if slope else 0.0
