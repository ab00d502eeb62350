"""`FloatRuns`: values of inner tensors of the float model, feed by feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfq.data import Feed, copy_feeds, sample_count
from onnxfq.data.model_inputs import input_specs
from onnxfq.graph.model import Model
from onnxfq.graph.segments import most_alive
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.session import Session


class FloatRuns:
    """Runs of the float model that return the inputs of layers."""

    def __init__(
        self,
        model: Model,
        tensors: set[str],
        threads: int,
        memory: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Prepare the runs.

        Args:
            model: the float model.
            tensors: to return.
            threads: cores to use, 0 for all.
            memory: bytes that runs side by side may take half of.
            progress: called with the number of feeds done of a pass.
        """
        self._progress = progress
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
        for number, (arrays, samples) in enumerate(self._runs.run(copy_feeds(feeds)), 1):
            found = {
                name: array.astype(np.float32, copy=False)
                for name, array in zip(self._names, arrays, strict=True)
            }
            yield found, samples
            if self._progress is not None:
                self._progress(number)

    def close(self) -> None:
        """End the sessions; another run opens new ones."""
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
