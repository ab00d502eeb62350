"""`collect_moments`: second moments of the inputs of layers, exact and independent of the order of the data.

One pass over the data stores sampled inputs and finds the range of each channel, which decides its grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import ByteGrid, MomentAdder, MomentSums
from onnxfq.calibration.weights import InputMoments, InputView
from onnxfq.calibration.weights.inputs import InputSample
from onnxfq.calibration.weights.moments_file import Key, Ranges, join_sums
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, sample_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import StatisticsError
from onnxfq.execution.activation_store import ArrayStore, free_room
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.model import Model
from onnxfq.remedies.weighted_layers import WeightedLayer
from onnxfq.runtime.integer_products import find_byte_products

ROWS = 1 << 12
"""Least rows of each layer over the whole data, if it has as many."""

ROWS_PER_INPUT = 4
"""Least rows for each input of a layer: with more, `gptq` gained nothing on the trained networks measured."""


def choose_rows(inputs: int) -> int:
    """Return the rows over the whole data of a layer with so many inputs."""
    return max(ROWS, ROWS_PER_INPUT * inputs)


def rows_per_sample(samples: int, rows: int) -> int:
    """Return how many rows each of `samples` samples gives to a layer, for about `rows` in all."""
    return max(-(-rows // max(samples, 1)), rows // 512)


def count_samples(model: Model, feeds: Iterable[Feed]) -> int:
    """Return the number of samples of all feeds."""
    specs = input_specs(model.proto)
    return sum(sample_count(feed, specs) for feed in feeds)


def collect_moments(
    model: Model,
    layers: Sequence[WeightedLayer],
    feeds: Iterable[Feed],
    threads: int = 0,
    room: int | None = None,
) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield each layer with the moments of its inputs.

    The model runs once over the data, and sampled inputs of the layers wait in a temporary file. It runs
    again for layers for which the file has no room. Memory holds the sums of one layer at a time.

    Args:
        model: the float model.
        layers: of `find_layers`.
        feeds: the data, which can be read several times: the samples are counted first.
        threads: cores to use, 0 for all.
        room: bytes of the file; half of the free ones if None.

    Raises StatisticsError for an input that holds NaN or infinities, OutputError if the file has no room.
    """
    samples = count_samples(model, feeds)
    with closing(FloatRuns(model, read_tensors(layers), threads, MOMENTS_MEMORY)) as runs:
        yield from sums_of_layers(sample_inputs(runs, layers, feeds, samples, room))


def sample_inputs(
    runs: FloatRuns,
    layers: Sequence[WeightedLayer],
    feeds: Iterable[Feed],
    samples: int,
    room: int | None = None,
    ranges: Ranges | None = None,
    first: int = 0,
) -> Iterator[SampledInputs]:
    """Yield the sampled inputs of `layers`, in parts for which a file has room; a run over the data for each.

    Args:
        runs: of the float model.
        layers: of `find_layers`.
        feeds: the data.
        samples: number of samples over which the rows are spread.
        room: bytes of the file; half of the free ones if None.
        ranges: the grids; those of the data if None.
        first: number of the first feed.
    """
    left = list(layers)
    while left:
        with closing(SampledInputs(left, samples, free_room() if room is None else room, ranges)) as found:
            for number, (arrays, count) in enumerate(runs.over(feeds), first):
                found.add(arrays, count, number)
            runs.close()  # summing needs the memory of the weights; another run opens the sessions again
            yield found
            left = left[len(found.layers) :]


def read_tensors(layers: Sequence[WeightedLayer]) -> set[str]:
    """Return the tensors that layers read."""
    return {one.tensor for layer in layers for one in layer.inputs}


def layer_keys(layers: Sequence[WeightedLayer]) -> list[Key]:
    """Return the inputs of layers, each once."""
    return list(dict.fromkeys((one.tensor, one.view) for layer in layers for one in layer.inputs))


_FeedShape = tuple[tuple[int, ...], int]
"""Shape of an input and number of samples."""


class SampledInputs:
    """Sampled inputs of as many layers as a file has room for, over one pass of the data.

    Attributes:
        layers: the layers.
        ranges: magnitudes of the largest and of the least value of each channel, by input.
    """

    def __init__(
        self, layers: Sequence[WeightedLayer], samples: int, room: int, ranges: Ranges | None
    ) -> None:
        """Start without inputs; see `sample_inputs`."""
        self.layers = layers
        self.ranges = {} if ranges is None else dict(ranges)
        self._given, self._limited = ranges, False
        self._samples, self._room = samples, room
        self._rows = ArrayStore[Key]()
        self._feeds: dict[Key, list[_FeedShape]] = {}
        self._last: dict[Key, tuple[_FeedShape, InputSample]] = {}

    def close(self) -> None:
        """Remove the file."""
        self._rows.close()

    def add(self, arrays: dict[str, NDArray[np.float32]], count: int, feed: int) -> None:
        """Store the rows of feed number `feed` with `count` samples; the first one limits the layers.

        Raises StatisticsError for NaN and infinities, and for values outside of given ranges.
        """
        if not self._limited:
            self.layers, self._limited = self._limit(arrays, count), True
        for key in layer_keys(self.layers):
            if self._given is None:
                update_ends(self.ranges, key, arrays[key[0]], feed)
            else:
                self._check_range(key, arrays[key[0]], feed)
            self._feeds.setdefault(key, []).append((arrays[key[0]].shape, count))
            self._rows.append(key, self._sample(key, (arrays[key[0]].shape, count)).take(arrays[key[0]]))

    def sum(self, key: Key) -> MomentSums:
        """Return the moments of an input over all feeds."""
        channels = ByteGrid.of(self.ranges[key])
        grid = replace(channels, steps=key[1].spread(channels.steps))
        adder = MomentAdder(grid, grid, find_byte_products())
        for shape, taken in zip(self._feeds[key], self._rows.read(key), strict=True):
            rows = self._sample(key, shape).round(taken, channels)
            adder.add(rows, rows)
        return adder.result()

    def _sample(self, key: Key, shape: _FeedShape) -> InputSample:
        """Return which rows to take from a feed; the last answer is kept."""
        if key not in self._last or self._last[key][0] != shape:
            rows = choose_rows(key[1].count_inputs(shape[0]))
            self._last[key] = shape, key[1].sample(*shape, rows_per_sample(self._samples, rows))
        return self._last[key][1]

    def _check_range(self, key: Key, x: NDArray[np.float32], feed: int) -> None:
        ends, given = channel_ends(x, key[1]), self.ranges[key]
        if ends.shape != given.shape:
            raise StatisticsError(
                f"the given ranges of tensor {key[0]!r} are of {given.shape[1]} channels, and it has "
                f"{ends.shape[1]}; gather them from this model with --ranges"
            )
        if not (ends <= given).all():
            raise StatisticsError(
                f"feed {feed} gives tensor {key[0]!r} values outside of the given ranges; gather the ranges "
                "of all parts of the data with --ranges, and merge them"
            )

    def _limit(self, arrays: dict[str, NDArray[np.float32]], count: int) -> Sequence[WeightedLayer]:
        seen: set[Key] = set()
        used = 0
        for number, layer in enumerate(self.layers):
            for key in set(layer_keys([layer])) - seen:
                taken = self._sample(key, (arrays[key[0]].shape, count)).take(arrays[key[0]])
                used += taken.nbytes * self._samples // max(count, 1)
                seen.add(key)
            if number and used > self._room:
                return self.layers[:number]
        return self.layers


class InputSums(Protocol):
    """Ranges and sums of the inputs of layers: `SampledInputs`, or those that a cluster gathers."""

    layers: Sequence[WeightedLayer]
    ranges: dict[Key, NDArray[np.float64]]

    def sum(self, key: Key) -> MomentSums:
        """Return the moments of an input over all feeds."""


def sums_of_inputs(parts: Iterable[InputSums]) -> Iterator[tuple[Key, NDArray[np.float64], MomentSums]]:
    """Yield each input once, with its ranges and sums."""
    done: set[Key] = set()
    for part in parts:
        for key in layer_keys(part.layers):
            if key not in done:
                done.add(key)
                yield key, part.ranges[key], part.sum(key)


def sums_of_layers(parts: Iterable[InputSums]) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield each layer with the moments of its inputs; neighbours that read the same inputs share them."""
    for part in parts:
        for keys, same in groupby(part.layers, lambda layer: layer_keys([layer])):
            moments = join_sums((part.sum(key) for key in keys), repr(keys[0][0]))
            yield from ((layer, moments) for layer in same)


def input_ends(
    runs: FloatRuns, feeds: Iterable[Feed], keys: Iterable[Key], first: int = 0
) -> dict[Key, NDArray[np.float64]]:
    """Return the ends of the channels of the inputs of layers; `first` numbers the first feed.

    Raises StatisticsError for an input that holds NaN or infinities.
    """
    found: dict[Key, NDArray[np.float64]] = {}
    for number, (arrays, _) in enumerate(runs.over(feeds), first):
        for key in keys:
            update_ends(found, key, arrays[key[0]], number)
    return found


def update_ends(found: dict[Key, NDArray[np.float64]], key: Key, x: NDArray[np.float32], feed: int) -> None:
    """Extend the ends of `key` in `found` by its tensor `x` of feed number `feed`.

    Raises StatisticsError if `x` holds NaN or infinities.
    """
    ends = channel_ends(x, key[1])
    if not np.isfinite(ends).all():
        raise StatisticsError(
            f"feed {feed} gives tensor {key[0]!r} NaN or infinities, which have no moments; remove them from "
            "the data, or use rounding: nearest and bias_correction: none"
        )
    found[key] = np.maximum(found[key], ends) if key in found else ends


def channel_ends(x: NDArray[np.float32], view: InputView) -> NDArray[np.float64]:
    """Return the magnitudes of the largest and of the least value of each channel, [2, channels].

    A channel without positive or without negative values has 0 at that end.
    """
    channel = view.channel_axis % x.ndim
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    return np.array([x.max(axis=others, initial=0.0), -x.min(axis=others, initial=0.0)], np.float64)
