"""Inputs, feeds and samples: what a model takes, and how many samples a feed for it holds.

Axis 0 counts samples where the model leaves it open in every input that is no scalar, and all arrays
of a feed agree about it; a scalar belongs to every sample. Any other feed is one sample as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class InputSpec:
    """Name, NumPy dtype and shape of a model input; None marks an open dimension, or an unknown shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        """Spell it as in a message: `x float32 [?, 3]`."""
        dims = "unknown" if self.shape is None else [("?" if n is None else n) for n in self.shape]
        return f"{self.name} {self.dtype} {dims}".replace("'", "")


Inputs = tuple[InputSpec, ...]


def samples_open(inputs: Inputs) -> bool:
    """Return whether the model leaves the number of samples a run open."""
    ranked = [spec for spec in inputs if spec.shape != ()]
    return bool(ranked) and all(spec.shape is not None and spec.shape[0] is None for spec in ranked)


def open_count(feed: Feed, inputs: Inputs) -> int | None:
    """Return how many samples axis 0 of `feed` counts, None when it counts none."""
    if not samples_open(inputs):
        return None
    counts = {feed[spec.name].shape[0] for spec in inputs if spec.shape}
    return int(counts.pop()) if len(counts) == 1 else None


def sample_count(feed: Feed, inputs: Inputs) -> int:
    """Return how many samples `feed` holds; 1 where axis 0 counts none."""
    count = open_count(feed, inputs)
    return 1 if count is None else count


def take_samples(feed: Feed, inputs: Inputs, start: int, stop: int) -> Feed:
    """Return samples `start` to before `stop` of a feed whose axis 0 counts samples, as views."""
    return {spec.name: feed[spec.name][start:stop] if spec.shape else feed[spec.name] for spec in inputs}


def samples(feed: Feed, inputs: Inputs) -> Iterator[Feed]:
    """Yield the samples of `feed`, each a feed of its own."""
    count = open_count(feed, inputs)
    if count is None:
        yield feed
        return
    for number in range(count):
        yield take_samples(feed, inputs, number, number + 1)
