"""Input specs, feeds, and sample counts of feeds.

Axis 0 counts samples if the model leaves it open in every input that is not a scalar and all arrays of a feed
agree. A scalar belongs to every sample. Any other feed is one sample, and so is a `WholeFeed`.
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

    @property
    def type_name(self) -> str:
        """The type that `astype` of NumPy takes; NumPy stores texts as `str`, and only runs need objects."""
        return "str" if self.dtype.kind == "O" else str(self.dtype)

    def __str__(self) -> str:
        """Return the text for messages: `x float32 [?, 3]`."""
        dims = "unknown" if self.shape is None else [("?" if n is None else n) for n in self.shape]
        return f"{self.name} {self.type_name} {dims}".replace("'", "")


Inputs = tuple[InputSpec, ...]


class WholeFeed(dict[str, NDArray[Any]]):
    """A feed that is one sample: its axis 0 counts time steps, nodes or the like."""


def copy_feed(feed: Feed) -> Feed:
    """Return `feed` with copies of its arrays."""
    copies = {name: np.array(array) for name, array in feed.items()}
    return WholeFeed(copies) if isinstance(feed, WholeFeed) else copies


def read_only(feed: Feed) -> Feed:
    """Return `feed`, or outputs of a run, with arrays for code that must not write into them, as views."""
    views = {name: value.view() if isinstance(value, np.ndarray) else value for name, value in feed.items()}
    for value in views.values():
        if isinstance(value, np.ndarray):  # outputs may also be maps and sequences
            value.flags.writeable = False
    return views


def samples_open(inputs: Inputs) -> bool:
    """Return whether the model leaves the number of samples per run open."""
    ranked = [spec for spec in inputs if spec.shape != ()]
    return bool(ranked) and all(spec.shape is not None and spec.shape[0] is None for spec in ranked)


def open_count(feed: Feed, inputs: Inputs) -> int | None:
    """Return the number of samples along axis 0 of `feed`; None if axis 0 does not count samples."""
    if not samples_open(inputs) or isinstance(feed, WholeFeed):
        return None
    counts = {feed[spec.name].shape[0] for spec in inputs if spec.shape}
    return int(counts.pop()) if len(counts) == 1 else None


def sample_count(feed: Feed, inputs: Inputs) -> int:
    """Return the number of samples in `feed`; 1 if axis 0 does not count samples."""
    count = open_count(feed, inputs)
    return 1 if count is None else count


def take_samples(feed: Feed, inputs: Inputs, start: int, stop: int) -> Feed:
    """Return samples [start, stop) of a feed whose axis 0 counts samples, as views."""
    return {spec.name: feed[spec.name][start:stop] if spec.shape else feed[spec.name] for spec in inputs}


def samples(feed: Feed, inputs: Inputs) -> Iterator[Feed]:
    """Yield each sample of `feed` as a feed."""
    count = open_count(feed, inputs)
    if count is None:
        yield feed
        return
    for number in range(count):
        yield take_samples(feed, inputs, number, number + 1)
