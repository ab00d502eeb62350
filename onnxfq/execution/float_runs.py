"""`FloatRuns`: values of inner tensors of the float model, feed by feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from onnxfq.calibration.statistics.input_kinds import ObservedInput
from onnxfq.calibration.statistics.kind import InputKey, Kind, Results, Value
from onnxfq.data import DataDigest, Feed, copy_feeds, digest_feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.graph.model import Model
from onnxfq.graph.segments import count_alive
from onnxfq.graph.signature import with_outputs
from onnxfq.runtime.parallel_runs import ParallelRuns
from onnxfq.runtime.session import Session

Read = TypeVar("Read")
_COPY = "/value"

_Arrays = dict[str, NDArray[np.float32]]
_Given = tuple[Feed, Callable[[_Arrays, DataDigest], Any]]
"""A feed, and what takes its arrays by name and its digest in the thread that ran it."""

Readers = Mapping[InputKey, Callable[[Results, int], Read]]
"""By an input of a layer: takes its array, the number of samples, and the number of the feed."""


class FloatRuns:
    """Runs of the float model that return the inputs of layers."""

    def __init__(self, model: Model, tensors: Iterable[str], threads: int, memory: int) -> None:
        """Prepare the runs.

        Args:
            model: the float model.
            tensors: to return.
            threads: cores to use, 0 for all.
            memory: bytes that runs side by side may take half of.
        """
        self._names = sorted(set(tensors))
        # An input cannot be an output, and gets a copy.
        taken = {value.name for value in model.proto.graph.input}.intersection(self._names)
        outputs = [name + _COPY if name in taken else name for name in self._names]
        proto = with_outputs(model.proto, outputs)
        for name in taken:
            copied = name + _COPY
            proto.graph.node.add().CopyFrom(helper.make_node("Identity", [name], [copied], copied))
        inputs = input_specs(model.proto)

        def open_session(threads_of_run: int) -> Callable[[_Given], tuple[Any, DataDigest]]:
            session = Session(proto, threads_of_run)

            def run(given: _Given) -> tuple[Any, DataDigest]:
                (feed, take), digest = given, digest_feed(given[0], inputs)
                named = zip(self._names, session.run(feed, outputs), strict=True)
                arrays = {name: array.astype(np.float32, copy=False) for name, array in named}
                return take(arrays, digest), digest

            return run

        def needed(given: _Given) -> int | None:
            return count_alive(model.proto.graph, given[0])

        self._runs = ParallelRuns(open_session, threads, memory // 2, needed)

    def over(self, feeds: Iterable[Feed]) -> Iterator[tuple[_Arrays, DataDigest]]:
        """Yield the inputs of layers by name, and the digest of each feed."""
        yield from self._runs.run((feed, lambda arrays, digest: arrays) for feed in copy_feeds(feeds))

    def read(
        self, feeds: Iterable[Feed], readers: Readers[Read], first: int = 0
    ) -> Iterator[tuple[dict[InputKey, Read], DataDigest]]:
        """Yield what `readers` return for each feed, and its digest; `first` numbers the first feed.

        They read where the model runs, so that the inputs of one feed for each run are in memory. Readers may
        be taken away between two feeds.
        """

        def read_feed(number: int, arrays: _Arrays, digest: DataDigest) -> dict[InputKey, Read]:
            count = np.asarray(digest.samples)
            return {key: read([arrays[key[0]], count], number) for key, read in list(readers.items())}

        numbered = enumerate(copy_feeds(feeds), first)
        yield from self._runs.run((feed, partial(read_feed, number)) for number, feed in numbered)

    def observe(
        self, kind: Kind[Value], inputs: Iterable[ObservedInput], feeds: Iterable[Feed]
    ) -> dict[InputKey, Value]:
        """Return the statistics of `kind` of inputs of layers over `feeds`."""
        totals = {(one.tensor, one.view): kind.empty(one) for one in inputs}
        for number, (arrays, digest) in enumerate(self.over(feeds)):
            for key, total in totals.items():
                total.add([arrays[key[0]], np.asarray(digest.samples)], number)
        return {key: total.result() for key, total in totals.items()}

    def close(self) -> None:
        """End the sessions; another run opens new ones."""
        self._runs.close()
