"""The figure of a model in its task, with its interval."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], list[Any]]

DRAWS, SHARE = 2000, 0.95


def figure_of(parts: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the sum of the parts over the sum of their weights, and the ends of its interval.

    The interval holds SHARE of the figures of DRAWS bootstrap samples (B. Efron, 1979), of a fixed seed.
    """
    values = np.array(parts, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    parts_drawn, weights_drawn = (values[:, at][drawn].sum(1) for at in (0, 1))
    whole = values.sum(0)
    ends = np.quantile(parts_drawn / np.maximum(weights_drawn, 1e-12), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(whole[0] / max(whole[1], 1e-12)), float(ends[0]), float(ends[1])


def measure(
    scorer: str, run: Run, float_run: Run, feeds: list[dict[str, Any]], truths: list[Any] | None
) -> tuple[float, float, float]:
    """Return the figure of a model by the module `scorer`; without truths the float outputs are the truth."""
    score = import_module(f"scorers.{scorer}").score
    parts: list[tuple[float, float]] = []
    for at, feed in enumerate(feeds):
        parts += score(run(feed), float_run(feed) if truths is None else truths[at])
    return figure_of(parts)
