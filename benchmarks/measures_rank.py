"""Rank correlations of measures with tasks, and what choices by measures gain; for `measures.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from variants import VARIANTS

TOOL = "worst part, both"
"""The measure that the tool uses."""

SETS = ("seen", "unseen")
"""Sets of calibration samples: those that gave ranges and moments, and the others."""

TASK = "task"
"""The set of samples of the task, for networks on which measures differ."""


class Scored(NamedTuple):
    """A variant: the figure of its task, and every measure by name on each of SETS, and maybe TASK."""

    variant: str
    figure: float
    values: Mapping[str, Mapping[str, float]]


class Network(NamedTuple):
    """A network: the metric of its task, a difference that matters, its variants.

    samples: their numbers, in the order of SETS. refused: reasons by variant.
    """

    name: str
    metric: str
    step: float
    exact: float
    samples: tuple[int, ...]
    scored: tuple[Scored, ...]
    refused: Mapping[str, str]

    def good(self, figure: float) -> float:
        """Return the figure so that higher is better."""
        return -figure if "lower is better" in self.metric else figure

    @property
    def free(self) -> list[Scored]:
        """The variants that cost the same at run time, the base of gains first."""
        return [one for one in self.scored if VARIANTS[one.variant].is_free]


def rank(values: Sequence[float]) -> NDArray[np.float64]:
    """Return ranks from 1; equal values share the mean of theirs."""
    row = np.asarray(values, np.float64)
    below = (row < row[:, None]).sum(axis=1)
    return (below + (row <= row[:, None]).sum(axis=1) + 1) / 2


def correlate(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN if one side is constant or holds NaN."""
    if len({*first}) < 2 or len({*second}) < 2 or any(map(math.isnan, (*first, *second))):
        return math.nan
    return float(np.corrcoef(rank(first), rank(second))[0, 1])


def correlation(network: Network, scored: Sequence[Scored], which: str, measure: str) -> float:
    """Return the rank correlation of a measure with the figure of the task over variants.

    NaN if all figures are within a step: there is nothing to rank. NaN without values on these samples.
    """
    if which not in scored[0].values:
        return math.nan
    good = [network.good(one.figure) for one in scored]
    if max(good) - min(good) <= network.step:
        return math.nan
    return correlate([one.values[which][measure] for one in scored], good)


def choose(network: Network, which: str, measure: str) -> tuple[float, float] | None:
    """Return how many steps the choice of a measure is below the best, and its share of the gain.

    It chooses the first of the variants of equal cost. The share is of the possible gain over the base, at
    least -1; NaN if that gain is at most a step. None if the measure measures nothing.
    """
    scored, good = network.free, network.good
    values = [one.values[which][measure] for one in scored]
    if any(map(math.isnan, values)):
        return None
    base, best = good(scored[0].figure), max(good(one.figure) for one in scored)
    taken = good(scored[int(np.argmax(values))].figure)
    share = max(-1.0, (taken - base) / (best - base)) if best - base > network.step else math.nan
    return (best - taken) / network.step, share


def mean(values: Sequence[float]) -> float:
    """Return the mean of what is not NaN; NaN of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def against(networks: Sequence[Network], which: str, measure: str) -> tuple[float, float, int]:
    """Return the correlation less the tool's: mean, standard error, and on how many networks they differ.

    The variants cost the same.
    """
    pairs = [[correlation(one, one.free, which, name) for name in (measure, TOOL)] for one in networks]
    apart = [a - b for a, b in pairs if not math.isnan(a + b)]
    error = float(np.std(apart, ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return mean(apart), error, sum(abs(one) > 1e-9 for one in apart)
