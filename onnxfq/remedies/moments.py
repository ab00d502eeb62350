"""Second moments of the inputs of layers, exact and independent of the order of the data.

One pass over the data stores sampled inputs and finds the range of each channel, which decides its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.input_kinds import Ends, ObservedInput
from onnxfq.calibration.statistics.input_means import ENDS, channel_ends
from onnxfq.calibration.statistics.input_view import InputSample
from onnxfq.calibration.statistics.kind import Accumulator, InputKey, Key, Results
from onnxfq.calibration.statistics.moments import ByteGrid, MomentAdder, MomentSums
from onnxfq.calibration.statistics.second_moments import MOMENTS, InputSums
from onnxfq.calibration.weights import InputMoments
from onnxfq.calibration.weights.moments_file import join_sums
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Feed, sample_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import StatisticsError
from onnxfq.execution.activation_store import ArrayStore, free_room
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.execution.gathering import Tally
from onnxfq.graph.model import Model
from onnxfq.remedies.weighted_layers import WeightedLayer
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
        yield from moments_of_layers(sample_inputs(runs, layers, feeds, samples, room))


def sample_inputs(
    runs: FloatRuns,
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
            seen: set[InputKey] = set()
            totals: list[dict[Key, Accumulator[Any]]] = []
            for layer in left:
                new = [key for key in layer_keys([layer]) if key not in seen]
                seen.update(new)
                totals.append(
                    {
                        (key, MOMENTS.name): SampledInput(
                            key, samples, store, None if ranges is None else ranges[key]
                        )
                        for key in new
                    }
                )
            tally = Tally(first, progress, stopped)
            values = runs.gather(feeds, totals, tally, free_room() if room is None else room)
            if not tally.complete:
                return
            runs.close()  # summing needs the memory of the weights; another run opens the sessions again
            sums = {key: value for (key, _), value in values.items()}
            count = next(
                (n for n, one in enumerate(left) if not sums.keys() >= set(layer_keys([one]))), len(left)
            )
            yield left[:count], sums
            left = left[count:]


def read_tensors(layers: Sequence[WeightedLayer]) -> set[str]:
    """Return the tensors that layers read."""
    return {one.tensor for layer in layers for one in layer.inputs}


def layer_keys(layers: Sequence[WeightedLayer]) -> list[InputKey]:
    """Return the inputs of layers, each once."""
    return list(dict.fromkeys((one.tensor, one.view) for layer in layers for one in layer.inputs))


_FeedShape = tuple[tuple[int, ...], int]
"""Shape of an input and number of samples."""


class SampledInput:
    """Sampled rows of one input over all feeds, in a file; their grid is known at the end."""

    def __init__(
        self, key: InputKey, samples: int, store: ArrayStore[InputKey], ranges: Ends | None = None
    ) -> None:
        """Start without rows; see `sample_inputs`."""
        self._key, self._samples, self._rows, self._given = key, samples, store, ranges
        self._ends = ENDS.empty(ObservedInput(*key))
        self._feeds: list[_FeedShape] = []
        self._sample: tuple[_FeedShape, InputSample] | None = None
        self._stored = self._seen = 0

    def add(self, results: Results, feed: int) -> None:
        """Store the rows of feed number `feed`.

        Raises StatisticsError for NaN and infinities, and for values outside of given ranges.
        """
        x, samples = results[0], int(results[1])
        if self._given is None:
            self._ends.add(results, feed)
        else:
            self._check_range(x, self._given, feed)
        taken = self._sample_of((x.shape, samples)).take(x)
        self._rows.append(self._key, taken)
        self._feeds.append((x.shape, samples))
        self._stored, self._seen = self._stored + taken.nbytes, self._seen + samples

    @property
    def bytes(self) -> int:
        """Size in the file at the end of the data, if it goes on as before."""
        return self._stored * self._samples // max(self._seen, 1)

    def result(self) -> InputSums:
        """Return the moments, which are computed when they are read."""
        ends = self._ends.result().ends if self._given is None else self._given
        return InputSums(ends, lambda: self._sum(ends))

    def _sum(self, ends: Ends) -> MomentSums:
        channels = ByteGrid.of(ends)
        grid = replace(channels, steps=self._key[1].spread(channels.steps))
        adder = MomentAdder(grid, grid, find_byte_products())
        for shape, taken in zip(self._feeds, self._rows.read(self._key), strict=True):
            rows = self._sample_of(shape).round(taken, channels)
            adder.add(rows, rows)
        return adder.result()

    def _sample_of(self, shape: _FeedShape) -> InputSample:
        """Return which rows to take from a feed; the last answer is kept."""
        if self._sample is None or self._sample[0] != shape:
            view = self._key[1]
            rows = choose_rows(view.count_inputs(shape[0]))
            self._sample = shape, view.sample(*shape, rows_per_sample(self._samples, rows))
        return self._sample[1]

    def _check_range(self, x: NDArray[np.float32], given: Ends, feed: int) -> None:
        ends, tensor = channel_ends(x, self._key[1]), self._key[0]
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
