"""`collect_moments`: second moments of the inputs of layers, exact and independent of the order of the data.

One pass over the data stores sampled inputs and finds the range of each channel, which decides its grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.calibration.statistics.moments import MomentAdder, MomentSums, choose_steps
from onnxfq.calibration.weights import InputMoments, InputView
from onnxfq.data import Feed, copy_feeds, sample_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.errors import StatisticsError
from onnxfq.graph.liveness import most_alive
from onnxfq.graph.model import Model
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.session import Session
from onnxfq.stages.array_store import ArrayStore, free_room
from onnxfq.stages.layer_inputs import Layer

ROWS = 1 << 14
"""Rows of each layer over the whole data; a sample gives at least ROWS / 512, or all that it has."""

MEMORY = 1 << 30
"""Bytes that runs side by side may take half of."""

Key = tuple[str, InputView]
"""Tensor and how a layer reads it: layers that share both share the moments."""


def rows_per_sample(samples: int, rows: int = ROWS) -> int:
    """Return how many rows each of `samples` samples gives to a layer, for about `rows` in all."""
    return max(-(-rows // max(samples, 1)), rows // 512)


def collect_moments(
    model: Model, layers: Sequence[Layer], feeds: Iterable[Feed], threads: int = 0, room: int | None = None
) -> Iterator[tuple[Layer, InputMoments]]:
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
    specs = input_specs(model.proto)
    samples = sum(sample_count(feed, specs) for feed in feeds)
    tensors = {one.tensor for layer in layers for one in layer.inputs}
    left = list(layers)
    with closing(FloatRuns(model, tensors, threads, MEMORY)) as runs:
        while left:
            with closing(_Pass(left, samples, free_room() if room is None else room)) as found:
                for number, (arrays, count) in enumerate(runs.over(feeds)):
                    found.add(arrays, count, number)
                for _, same in groupby(found.layers, lambda layer: _keys([layer])):
                    those = list(same)  # queries, keys and values share moments and their factors
                    moments = found.moments(those[0])
                    yield from ((layer, moments) for layer in those)
                left = left[len(found.layers) :]


class _Pass:
    """Sampled inputs of as many layers as a file has room for, over one pass of the data."""

    def __init__(self, layers: Sequence[Layer], samples: int, room: int) -> None:
        self.layers = layers
        self._samples, self._room = samples, room
        self._most = rows_per_sample(samples)
        self._amax: dict[Key, NDArray[np.float64]] = {}
        self._rows = ArrayStore[Key]()

    def close(self) -> None:
        self._rows.close()

    def add(self, arrays: dict[str, NDArray[np.float32]], count: int, feed: int) -> None:
        """Store the rows of feed number `feed` with `count` samples; the first one limits the layers."""
        if not self._amax:
            self.layers = self._limit(arrays, count)
        for key in _keys(self.layers):
            update_amax(self._amax, key, arrays[key[0]], feed)
            self._rows.append(key, key[1].rows(arrays[key[0]], count, self._most))

    def moments(self, layer: Layer) -> InputMoments:
        """Return the moments of the inputs of `layer` over all feeds."""
        totals = [self._sum((one.tensor, one.view)) for one in layer.inputs]
        return InputMoments(
            reduce(np.add, (total.matrix() for total in totals)), sum(total.rows for total in totals)
        )

    def _limit(self, arrays: dict[str, NDArray[np.float32]], count: int) -> Sequence[Layer]:
        seen: set[Key] = set()
        used = 0
        for number, layer in enumerate(self.layers):
            for key in set(_keys([layer])) - seen:
                used += key[1].rows(arrays[key[0]], count, self._most).nbytes * self._samples // max(count, 1)
                seen.add(key)
            if number and used > self._room:
                return self.layers[:number]
        return self.layers

    def _sum(self, key: Key) -> MomentSums:
        steps = key[1].spread(choose_steps(self._amax[key]))
        adder = MomentAdder(steps, steps)
        for rows in self._rows.read(key):
            adder.add(rows, rows)
        return adder.result()


def _keys(layers: Sequence[Layer]) -> list[Key]:
    return list(dict.fromkeys((one.tensor, one.view) for layer in layers for one in layer.inputs))


class FloatRuns:
    """Runs of the float model that return the inputs of layers."""

    def __init__(self, model: Model, tensors: set[str], threads: int, memory: int) -> None:
        """Prepare the runs.

        Args:
            model: the float model.
            tensors: to return.
            threads: cores to use, 0 for all.
            memory: bytes that runs side by side may take half of.
        """
        self._names = sorted(tensors)
        proto = _with_values(model.proto, self._names)
        outputs = [_value_name(proto, name) for name in self._names]
        inputs = input_specs(model.proto)

        def open_session(threads_of_run: int) -> Callable[[Feed], tuple[list[NDArray[Any]], int]]:
            session = Session(proto, threads_of_run)
            return lambda feed: (session.run(feed, outputs), sample_count(feed, inputs))

        self._runs = ParallelRuns(
            open_session,
            threads,
            memory // 2,
            lambda feed: most_alive(model.proto.graph, {name: array.shape for name, array in feed.items()}),
        )

    def over(self, feeds: Iterable[Feed]) -> Iterator[tuple[dict[str, NDArray[np.float32]], int]]:
        """Yield the inputs of layers by name and the number of samples of each feed."""
        for arrays, samples in self._runs.run(copy_feeds(feeds)):
            found = {
                name: array.astype(np.float32, copy=False)
                for name, array in zip(self._names, arrays, strict=True)
            }
            yield found, samples

    def close(self) -> None:
        """End the sessions."""
        self._runs.close()


_COPY = "/value"


def _with_values(proto: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return `proto` with `tensors` as outputs; an input gets a copy, because it cannot be an output."""
    inputs = {value.name for value in proto.graph.input}
    made = with_outputs(proto, [name if name not in inputs else name + _COPY for name in tensors])
    for name in inputs & set(tensors):
        made.graph.node.add().CopyFrom(helper.make_node("Identity", [name], [name + _COPY], name + _COPY))
    return made


def _value_name(proto: onnx.ModelProto, tensor: str) -> str:
    return tensor + _COPY if any(value.name == tensor for value in proto.graph.input) else tensor


def largest_inputs(
    runs: FloatRuns, feeds: Iterable[Feed], keys: Sequence[Key]
) -> dict[Key, NDArray[np.float64]]:
    """Return the largest magnitude of each channel of the inputs of layers.

    Raises StatisticsError for an input that holds NaN or infinities.
    """
    found: dict[Key, NDArray[np.float64]] = {}
    for number, (arrays, _) in enumerate(runs.over(feeds)):
        for key in keys:
            update_amax(found, key, arrays[key[0]], number)
    return found


def update_amax(found: dict[Key, NDArray[np.float64]], key: Key, x: NDArray[np.float32], feed: int) -> None:
    """Extend the largest magnitudes of `key` in `found` by its tensor `x` of feed number `feed`.

    Raises StatisticsError if `x` holds NaN or infinities.
    """
    most = channel_amax(x, key[1])
    if not np.isfinite(most).all():
        raise StatisticsError(
            f"feed {feed} gives tensor {key[0]!r} NaN or infinities, which have no moments; remove them from "
            "the data, or use rounding: nearest and bias_correction: none"
        )
    found[key] = np.maximum(found[key], most) if key in found else most


def channel_amax(x: NDArray[np.float32], view: InputView) -> NDArray[np.float64]:
    """Return the largest magnitude of each channel of the input of a layer."""
    channel = view.channel_axis % x.ndim
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    ends = x.max(axis=others, initial=0.0), -x.min(axis=others, initial=0.0)
    return np.asarray(np.maximum(*ends), np.float64)
