"""Ranges and moments of the channels that groups of factors scale."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.channels import ChannelGroup
from onnxfq.graph.model import Model


@dataclass(frozen=True)
class ChannelMoments:
    """Numbers of each channel of a tensor, float64 [C].

    Attributes:
        amax: largest magnitude.
        square: mean square.
        live: share of the values that are not 0.
    """

    amax: NDArray[np.float64]
    square: NDArray[np.float64]
    live: NDArray[np.float64]


def observe_channels(
    model: Model, groups: Sequence[ChannelGroup], feeds: Sequence[Feed], threads: int
) -> dict[str, ChannelMoments]:
    """Return the moments of the channels that operators with weights sum over, by tensor.

    The sums round: their last bits depend on the order of `feeds` and on their batches, which callers fix.
    """
    folds = {fold.summed: fold for g in groups for fold in (*g.readers, *g.writers) if fold.summed}
    if not folds:
        return {}
    tops: dict[str, list[NDArray[np.float64]]] = {name: [] for name in folds}
    squares: dict[str, list[NDArray[np.float64]]] = {name: [] for name in folds}
    lives: dict[str, list[NDArray[np.int64]]] = {name: [] for name in folds}
    counts = dict.fromkeys(folds, 0)
    with closing(FloatRuns(model, set(folds), threads, MOMENTS_MEMORY)) as runs:
        for values, _ in runs.over(feeds):
            for name, fold in folds.items():
                rows = np.moveaxis(np.asarray(values[name], np.float64), fold.axis, -1)
                rows = np.where(np.isfinite(rows), rows, 0.0).reshape(-1, rows.shape[-1])
                tops[name].append(np.abs(rows).max(axis=0, initial=0.0))
                squares[name].append(np.square(rows).sum(axis=0))
                lives[name].append(np.count_nonzero(rows, axis=0))
                counts[name] += len(rows)
    return {
        name: ChannelMoments(
            amax=np.max(tops[name], axis=0),
            square=np.sum(squares[name], axis=0) / max(counts[name], 1),
            live=np.sum(lives[name], axis=0) / max(counts[name], 1),
        )
        for name in folds
    }
