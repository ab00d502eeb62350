"""`collect_moments`: second moments of the inputs of layers, exact and independent of the order of the data.

One pass finds the largest magnitude of each channel, the next ones sum the products of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
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
from onnxfq.stages.layer_inputs import Layer

ROWS = 1 << 14
"""Rows of each layer over the whole data; a sample gives at least ROWS / 512, or all that it has."""

MEMORY = 1 << 30
"""Bytes that the sums of a pass may take."""

Key = tuple[str, InputView]
"""Tensor and how a layer reads it: layers that share both share the moments."""


def rows_per_sample(samples: int, rows: int = ROWS) -> int:
    """Return how many rows each of `samples` samples gives to a layer, for about `rows` in all."""
    return max(-(-rows // max(samples, 1)), rows // 512)


def collect_moments(
    model: Model, layers: Sequence[Layer], feeds: Iterable[Feed], threads: int = 0, memory: int = MEMORY
) -> Iterator[tuple[Layer, InputMoments]]:
    """Yield each layer with the moments of its inputs; the data is read once more for each part of `memory`.

    Args:
        model: the float model.
        layers: of `find_layers`.
        feeds: the data, which can be read several times.
        threads: cores to use, 0 for all.
        memory: bytes for the sums of one pass.

    Raises StatisticsError for an input that holds NaN or infinities.
    """
    wanted = {(one.tensor, one.view): None for layer in layers for one in layer.inputs}
    with closing(FloatRuns(model, {tensor for tensor, _ in wanted}, threads, memory)) as runs:
        amax, samples = largest_inputs(runs, feeds, list(wanted))
        most = rows_per_sample(samples)
        for part in _parts(layers, amax, memory):
            keys = {(one.tensor, one.view): None for layer in part for one in layer.inputs}
            sums = _sums(runs, feeds, {key: key[1].spread(choose_steps(amax[key])) for key in keys}, most)
            for layer in part:
                totals = [sums[one.tensor, one.view] for one in layer.inputs]
                whole = np.sum([total.matrix() for total in totals], axis=0)
                yield layer, InputMoments(whole, sum(total.rows for total in totals))


def _parts(layers: Sequence[Layer], amax: dict[Key, NDArray[np.float64]], memory: int) -> list[list[Layer]]:
    """Cut `layers` into parts whose sums fit in half of `memory`, as far as single layers do."""
    parts: list[list[Layer]] = [[]]
    held: set[Key] = set()
    used = 0
    for layer in layers:
        keys = {(one.tensor, one.view) for one in layer.inputs}
        size = sum(
            8 * key[1].spread(amax[key]).shape[1] * key[1].spread(amax[key]).size for key in keys - held
        )
        if parts[-1] and used + size > memory // 2:
            parts.append([])
            held, used = set(), 0
        parts[-1].append(layer)
        held |= keys
        used += size
    return parts


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
) -> tuple[dict[Key, NDArray[np.float64]], int]:
    """Return the largest magnitude of each channel of the inputs of layers, and the number of samples.

    Raises StatisticsError for an input that holds NaN or infinities.
    """
    found: dict[Key, NDArray[np.float64]] = {}
    samples = 0
    for number, (arrays, count) in enumerate(runs.over(feeds)):
        samples += count
        for key in keys:
            most = channel_amax(arrays[key[0]], key[1])
            if not np.isfinite(most).all():
                raise StatisticsError(
                    f"feed {number} gives tensor {key[0]!r} NaN or infinities, which have no moments; remove "
                    "them from the data, or use rounding: nearest and bias_correction: none"
                )
            found[key] = np.maximum(found[key], most) if key in found else most
    return found, samples


def channel_amax(x: NDArray[np.float32], view: InputView) -> NDArray[np.float64]:
    """Return the largest magnitude of each channel of the input of a layer."""
    channel = view.channel_axis % x.ndim
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    ends = x.max(axis=others, initial=0.0), -x.min(axis=others, initial=0.0)
    return np.asarray(np.maximum(*ends), np.float64)


def _sums(
    runs: FloatRuns, feeds: Iterable[Feed], steps: dict[Key, NDArray[np.float64]], most: int
) -> dict[Key, MomentSums]:
    adders = {key: MomentAdder(step, step) for key, step in steps.items()}
    for arrays, count in runs.over(feeds):
        for key, adder in adders.items():
            rows = key[1].rows(arrays[key[0]], count, most)
            adder.add(rows, rows)
    return {key: adder.result() for key, adder in adders.items()}
