"""Ranges and moments of the channels that groups of factors scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.graph.model import Model
from onnxfq.stages.moments import FloatRuns

Place = tuple[str, tuple[int, ...]]
"""A tensor, and the axes whose elements have factors: its channels, such as heads and values of attention."""


@dataclass(frozen=True)
class ChannelMoments:
    """Numbers of each channel of a tensor for each feed, float64 [feeds, C].

    Attributes:
        amax: largest magnitude.
        square: mean square.
        live: share of the values that are not 0.
    """

    amax: NDArray[np.float64]
    square: NDArray[np.float64]
    live: NDArray[np.float64]

    def over(self, feeds: slice) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the numbers over some feeds, [C] each."""
        return self.amax[feeds].max(axis=0), self.square[feeds].mean(axis=0), self.live[feeds].mean(axis=0)


def observe_channels(
    model: Model, tensors: Iterable[Place], feeds: Sequence[Feed], threads: int
) -> dict[Place, ChannelMoments]:
    """Return the moments of the channels of tensors for each of `feeds`."""
    places = list(dict.fromkeys(tensors))
    if not places:
        return {}
    found: dict[Place, list[NDArray[np.float64]]] = {place: [] for place in places}
    with closing(FloatRuns(model, {name for name, _ in places}, threads, MOMENTS_MEMORY)) as runs:
        for values, _ in runs.over(feeds):
            for place in places:
                name, axes = place
                rows = np.moveaxis(np.asarray(values[name], np.float64), axes, range(-len(axes), 0))
                rows = rows.reshape(-1, prod(rows.shape[rows.ndim - len(axes) :]))
                rows = np.where(np.isfinite(rows), rows, 0.0)
                count = max(len(rows), 1)
                numbers = np.abs(rows).max(axis=0, initial=0.0), np.square(rows).sum(axis=0) / count
                found[place].append(np.stack([*numbers, np.count_nonzero(rows, axis=0) / count]))
    return {place: ChannelMoments(*np.stack(each, axis=1)) for place, each in found.items()}
