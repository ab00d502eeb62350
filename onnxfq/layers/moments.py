"""Second moments of the inputs of layers, exact and independent of the order of the data.

One pass over the data stores sampled inputs and finds the range of each channel, which decides its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import Ends, ObservedInput
from onnxfq.calibration.statistics.input_means import ENDS, ChannelEnds, channel_ends, finite_ends
from onnxfq.calibration.statistics.input_view import InputSample
from onnxfq.calibration.statistics.kind import InputKey, Results
from onnxfq.calibration.statistics.moments import ByteGrid, MomentAdder, MomentSums
from onnxfq.calibration.statistics.second_moments import InputSums
from onnxfq.calibration.weights import InputMoments
from onnxfq.calibration.weights.moments_file import join_sums
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, sample_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import StatisticsError
from onnxfq.execution.activation_store import ArrayStore, free_room
from onnxfq.execution.cluster import Cluster
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.execution.gathering import Tally
from onnxfq.execution.spread_runs import SpreadRuns
from onnxfq.graph.model import Model
from onnxfq.layers.weighted_layers import WeightedLayer
from onnxfq.runtime.integer_products import find_byte_products
from onnxfq.runtime.session import Progress

Part = tuple[Sequence[WeightedLayer], Mapping[InputKey, InputSums]]
"""Some layers, and the moments of all of their inputs."""

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
    cluster: Cluster | None = None,
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
        cluster: runs the model on its workers; None for this machine.

    Raises StatisticsError for an input that holds NaN or infinities, OutputError if the file has no room.
    """
    samples = count_samples(model, feeds)
    with closing(open_runs(model, layers, threads, MOMENTS_MEMORY, cluster)) as runs:
        yield from moments_of_layers(sample_inputs(runs, layers, feeds, samples, room))


def open_runs(
    model: Model, layers: Sequence[WeightedLayer], threads: int, memory: int, cluster: Cluster | None
) -> FloatRuns | SpreadRuns:
    """Return runs of the float model, here or on a cluster, that read the inputs of layers."""
    tensors = {one.tensor for layer in layers for one in layer.inputs}
    if cluster is None:
        return FloatRuns(model, tensors, threads, memory)
    return SpreadRuns(cluster, model, tensors, memory)


def sample_inputs(
    runs: FloatRuns | SpreadRuns,
    layers: Sequence[WeightedLayer],
    feeds: Iterable[Feed],
    samples: int,
    room: int | None = None,
    ranges: Mapping[InputKey, Ends] | None = None,
    first: int = 0,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Part]:
    """Yield layers and their moments, as many as a file has room for; a run over the data for each part.

    Args:
        runs: of the float model.
        layers: of `find_layers`.
        feeds: the data.
        samples: number of samples over which the rows are spread.
        room: bytes of the file; half of the free ones if None.
        ranges: the grids; those of the data if None.
        first: number of the first feed.
        progress: called with the number of feeds done of a run.
        stopped: asked after every feed; once it returns true, nothing more is yielded.
    """
    left = list(layers)
    while left:
        with closing(ArrayStore[InputKey]()) as store:
            readers: dict[InputKey, Callable[[Results, int], SampledRows]] = {}
            groups: list[dict[InputKey, SampledInput]] = []
            for layer in left:
                samplers = [
                    RowSampler(key, samples, None if ranges is None else ranges[key])
                    for key in layer_keys([layer])
                    if key not in readers
                ]
                readers |= {one.key: one.take for one in samplers}
                groups.append({one.key: SampledInput(one, store) for one in samplers})
            tally = Tally(first, progress, stopped)
            _sample(groups, readers, tally.over(runs.read(feeds, readers, first)), room)
            if not tally.complete:
                return
            runs.close()  # summing needs the memory of the weights; another run opens the sessions again
            sums = {key: one.result() for group in groups for key, one in group.items()}
            count = next(
                (n for n, one in enumerate(left) if not sums.keys() >= set(layer_keys([one]))), len(left)
            )
            yield left[:count], sums
            left = left[count:]


def _sample(
    groups: list[dict[InputKey, SampledInput]],
    readers: dict[InputKey, Callable[[Results, int], SampledRows]],
    taken: Iterable[Mapping[InputKey, SampledRows]],
    room: int | None,
) -> None:
    """Store the rows of every feed in `groups`; the last ones go, with their readers, if they lack room."""
    room = free_room() if room is None else room
    for rows in taken:
        for key, one in ((key, one) for group in groups for key, one in group.items()):
            one.add(rows[key])
        sizes = accumulate(sum(one.bytes for one in group.values()) for group in groups)
        kept = max(1, sum(size <= room for size in sizes))
        for key in (key for group in groups[kept:] for key in group):
            del readers[key]
        del groups[kept:]


def layer_keys(layers: Sequence[WeightedLayer]) -> list[InputKey]:
    """Return the inputs of layers, each once."""
    return list(dict.fromkeys((one.tensor, one.view) for layer in layers for one in layer.inputs))


_FeedShape = tuple[tuple[int, ...], int]
"""Shape of an input and number of samples."""


class SampledRows(NamedTuple):
    """Rows of one feed of an input, with the shape of the feed, and the ends of its channels if asked."""

    shape: _FeedShape
    rows: NDArray[Any]
    ends: ChannelEnds | None


class RowSampler:
    """Takes the rows of a feed from one input."""

    def __init__(self, key: InputKey, samples: int, given: Ends | None = None) -> None:
        """Take rows of `key`; see `sample_inputs`. With `given` ends, values must lie inside."""
        self.key, self.samples, self.given = key, samples, given
        self._sample: tuple[_FeedShape, InputSample] | None = None

    def take(self, results: Results, feed: int) -> SampledRows:
        """Return the rows of feed number `feed`.

        Raises StatisticsError for NaN and infinities, and for values outside of given ranges.
        """
        x, shape = results[0], (results[0].shape, int(results[1]))
        ends = None
        if self.given is None:
            ends = read_ends(self.key, results, feed)
        else:
            self._check_range(x, self.given, feed)
        return SampledRows(shape, self.sample_of(shape).take(x), ends)

    def sample_of(self, shape: _FeedShape) -> InputSample:
        """Return which rows to take from a feed; the last answer is kept, also while other threads ask."""
        known = self._sample
        if known is None or known[0] != shape:
            view = self.key[1]
            rows = choose_rows(view.count_inputs(shape[0]))
            known = self._sample = shape, view.sample(*shape, rows_per_sample(self.samples, rows))
        return known[1]

    def _check_range(self, x: NDArray[np.float32], given: Ends, feed: int) -> None:
        ends, tensor = channel_ends(x, self.key[1]), self.key[0]
        if ends.shape != given.shape:
            raise StatisticsError(
                f"the given ranges of tensor {tensor!r} are of {given.shape[1]} channels, and it has "
                f"{ends.shape[1]}; gather them from this model with --ranges"
            )
        if not (ends <= given).all():
            raise StatisticsError(
                f"feed {feed} gives tensor {tensor!r} values outside of the given ranges; gather the ranges "
                "of all parts of the data with --ranges, and merge them"
            )


def read_ends(key: InputKey, results: Results, feed: int) -> ChannelEnds:
    """Return the ends of an input in feed number `feed`. Raises StatisticsError for NaN and infinities."""
    return finite_ends(ObservedInput(*key), results[0], feed)


class SampledInput:
    """Sampled rows of one input over all feeds, in a file; their grid is known at the end."""

    def __init__(self, sampler: RowSampler, store: ArrayStore[InputKey]) -> None:
        """Start without rows."""
        self._sampler, self._key, self._rows = sampler, sampler.key, store
        self._ends: ChannelEnds | None = None
        self._feeds: list[_FeedShape] = []
        self._stored = self._seen = 0

    def add(self, taken: SampledRows) -> None:
        """Store the rows of a feed."""
        if taken.ends is not None:
            self._ends = taken.ends if self._ends is None else self._ends.merge(taken.ends)
        self._rows.append(self._key, taken.rows)
        self._feeds.append(taken.shape)
        self._stored, self._seen = self._stored + taken.rows.nbytes, self._seen + taken.shape[1]

    @property
    def bytes(self) -> int:
        """Size in the file at the end of the data, if it goes on as before."""
        return self._stored * self._sampler.samples // max(self._seen, 1)

    def result(self) -> InputSums:
        """Return the moments, which are computed when they are read."""
        ends = self._sampler.given
        if ends is None:
            ends = (self._ends or ENDS.empty(ObservedInput(*self._key)).result()).ends
        return InputSums(ends, lambda: self._sum(ends))

    def _sum(self, ends: Ends) -> MomentSums:
        channels = ByteGrid.of(ends)
        grid = replace(channels, steps=self._key[1].spread(channels.steps))
        adder = MomentAdder(grid, grid, find_byte_products())
        for shape, taken in zip(self._feeds, self._rows.read(self._key), strict=True):
            rows = self._sampler.sample_of(shape).round(taken, channels)
            adder.add(rows, rows)
        return adder.result()


def moments_of_inputs(parts: Iterable[Part]) -> Iterator[tuple[InputKey, InputSums]]:
    """Yield each input once, with its moments."""
    done: set[InputKey] = set()
    for layers, sums in parts:
        for key in layer_keys(layers):
            if key not in done:
                done.add(key)
                yield key, sums[key]


def moments_of_layers(parts: Iterable[Part]) -> Iterator[tuple[WeightedLayer, InputMoments]]:
    """Yield each layer with the moments of its inputs; neighbours that read the same inputs share them."""
    for layers, sums in parts:
        for keys, same in groupby(layers, lambda layer: layer_keys([layer])):
            moments = join_sums((sums[key].read() for key in keys), repr(keys[0][0]))
            yield from ((layer, moments) for layer in same)
