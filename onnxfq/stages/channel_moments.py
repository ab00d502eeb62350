"""Ranges and moments of the channels that groups of factors scale."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed
from onnxfq.graph.channels import ChannelGroup
from onnxfq.graph.model import Model
from onnxfq.stages.moments import FloatRuns


@dataclass(frozen=True)
class ChannelMoments:
    """Numbers of each channel of a tensor, float64 [C].

    Attributes:
        amax: largest magnitude.
        likely: magnitude that further data are likely to stay in; inf if unknown.
        square: mean square.
        live: share of the values that are not 0.
    """

    amax: NDArray[np.float64]
    likely: NDArray[np.float64]
    square: NDArray[np.float64]
    live: NDArray[np.float64]


def observe_channels(
    model: Model, groups: Sequence[ChannelGroup], feeds: Sequence[Feed], threads: int
) -> dict[str, ChannelMoments]:
    """Return the moments of the channels that operators with weights sum over, by tensor."""
    folds = {fold.summed: fold for g in groups for fold in (*g.readers, *g.writers) if fold.summed}
    if not folds:
        return {}
    tops: dict[str, list[NDArray[np.float64]]] = {name: [] for name in folds}
    squares: dict[str, list[NDArray[np.float64]]] = {name: [] for name in folds}
    lives: dict[str, list[NDArray[np.float64]]] = {name: [] for name in folds}
    with closing(FloatRuns(model, set(folds), threads, MOMENTS_MEMORY)) as runs:
        for values, _ in runs.over(feeds):
            for name, fold in folds.items():
                rows = np.moveaxis(np.asarray(values[name], np.float64), fold.axis, -1)
                rows = np.where(np.isfinite(rows), rows, 0.0).reshape(-1, rows.shape[-1])
                tops[name].append(np.abs(rows).max(axis=0, initial=0.0))
                squares[name].append(np.square(rows).sum(axis=0) / max(len(rows), 1))
                lives[name].append(np.count_nonzero(rows, axis=0) / max(len(rows), 1))
    return {
        name: ChannelMoments(
            amax=np.max(tops[name], axis=0),
            likely=_likely_amax(tops[name], fold.inputs),
            square=np.mean(squares[name], axis=0),
            live=np.mean(lives[name], axis=0),
        )
        for name, fold in folds.items()
    }


def _likely_amax(tops: Sequence[NDArray[np.float64]], ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the magnitude of each channel that further feeds are likely to stay in, [C]; inf if unknown.

    `tops` holds the magnitudes in each feed. Channels of a variable in `ids` have one factor. If their range
    in every other feed differs by over an octave, they are taken as larger by the same ratio: channels that
    are hardly ever active must not get a factor that their next activity outgrows.
    """
    whole = np.max(tops, axis=0)
    if len(tops) < 2:
        return np.asarray(whole)
    both = np.zeros((2, int(ids.max(initial=0)) + 1))
    for half, top in zip(both, (np.max(tops[::2], axis=0), np.max(tops[1::2], axis=0)), strict=True):
        np.maximum.at(half, ids, top)
    most, least = both.max(axis=0), both.min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Factors are powers of two: what stays within an octave is as good as equal.
        growth = np.where(most <= 2.0 * least, 1.0, most / least)
    return np.where(whole > 0.0, whole * growth[ids], 0.0)
