"""Outputs of the float model on the feeds of the comparison, computed once and next to other stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from itertools import chain
from threading import Event

import onnx

from onnxfq.choices import DeviceChoice
from onnxfq.data import Feed
from onnxfq.execution.sides import LEAST_FEEDS, Outputs, Side, run_sides
from onnxfq.graph.external.sizes import ONE_PIECE
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.signature import output_names
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.parallel_runs import ParallelRuns, count_cores

KEPT_BYTES = 64 << 20
"""Most bytes of outputs that are kept."""


class ReferenceRuns:
    """Runs of a float model on feeds that several quantized models are compared on.

    Each feed runs once, as far as its outputs can be kept. The first LEAST_FEEDS run in the background, while
    the main thread calibrates and inserts, which takes one core. Models that are compared on a GPU or one at
    a time, and models that feed state back, run when they are compared.
    """

    def __init__(
        self, reference: onnx.ModelProto, judged: JudgedTensors, threads: int, device: DeviceChoice
    ) -> None:
        """Store the float model and what judges it; nothing runs yet."""
        self.side = _fetch_all(reference, judged)
        self._states, self._threads, self._device = judged.states, threads, device
        self._kept: dict[int, tuple[Feed, Outputs]] = {}  # by id of the feed, which is held
        self._room = KEPT_BYTES
        self._stopped = Event()
        self._pool: ThreadPoolExecutor | None = None
        self._filled: Future[None] | None = None
        self._runs: ParallelRuns[Feed, Outputs] | None = None

    def __enter__(self) -> ReferenceRuns:
        """Return the runs."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the run in progress, and drop the rest."""
        self._stopped.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._filled = None
        self._kept, self._room = {}, 0
        self._close()

    @cached_property
    def _is_apart(self) -> bool:
        """Whether the model has to run when it is compared."""
        is_whole = self.side.bytes <= ONE_PIECE and bool(self.side.fetches)
        return not is_whole or bool(self._states) or choose_device(self._device) != "cpu"

    def serves(self, reference: onnx.ModelProto, judged: JudgedTensors) -> bool:
        """Tell whether the runs are of this model, and give what `judged` compares."""
        return self.side.proto is reference and self.side.fetches == _fetch_all(reference, judged).fetches

    def start(self, feeds: Sequence[Feed]) -> None:
        """Begin to run the first of `feeds`, unless it was begun before or cannot be in the background."""
        first = list(feeds[:LEAST_FEEDS])
        alone = (self._threads or count_cores()) < 2 or self._is_apart
        if first and not alone and self._pool is None:
            self._pool = ThreadPoolExecutor(1)
            self._filled = self._pool.submit(self._fill, first)

    def over(self, feeds: Sequence[Feed], more: bool = False) -> Iterator[Outputs] | None:
        """Return the outputs on all of `feeds`; None if the model has to run when it is compared.

        With `more` the session stays open for other feeds.
        """
        if self._is_apart:
            return None
        if self._filled is not None:
            self._filled.result()
        return self._run(feeds, more)

    def _fill(self, feeds: Sequence[Feed]) -> None:
        for _ in self._run(feeds, more=True):
            if self._stopped.is_set():
                break

    def _run(self, feeds: Sequence[Feed], more: bool) -> Iterator[Outputs]:
        known = dict(self._kept)
        missing = [feed for feed in feeds if id(feed) not in known]
        self._runs = runs = self._runs or self.side.open_runs(self._threads)
        # Nothing runs ahead of a part: a comparison may end behind it.
        parts = (missing[at : at + LEAST_FEEDS] for at in range(0, len(missing), LEAST_FEEDS))
        made = chain.from_iterable(map(runs.run, parts))
        try:
            for feed in feeds:
                if id(feed) in known:
                    yield known[id(feed)][1]
                    continue
                outputs = next(made)
                size = _count_bytes(outputs)
                if size <= self._room:
                    self._room -= size
                    self._kept[id(feed)] = feed, outputs
                yield outputs
        finally:
            if not more:  # weights in a session are not held while remedies are tried
                self._close()

    def _close(self) -> None:
        if self._runs is not None:
            self._runs.close()
        self._runs = None


def keep_outputs(
    reference: onnx.ModelProto,
    judged: JudgedTensors,
    feeds: Sequence[Feed],
    threads: int,
    device: DeviceChoice,
) -> list[Outputs]:
    """Return the outputs of a float model, and the inner tensors of `judged`.

    [] if they are too large. A model that feeds state back runs when it is compared.
    """
    side = _fetch_all(reference, judged)
    kept: list[Outputs] = []
    if judged.states or not side.fetches:
        return kept
    with closing(run_sides([side], feeds, threads, device)) as runs:
        for (outputs,) in runs:
            if _count_bytes(outputs) * len(feeds) > KEPT_BYTES:
                return []
            kept.append(outputs)
    return kept


def keep_stream_outputs(
    into: dict[int, tuple[Feed, Outputs]], samples: Sequence[Feed], outputs: Iterable[Outputs]
) -> None:
    """Go through the outputs of a float model on `samples` of a stream; keep them if they are not large."""
    for sample, found in zip(samples, outputs, strict=True):
        if _count_bytes(found) * len(samples) <= KEPT_BYTES:
            into[id(sample)] = sample, found


def _fetch_all(reference: onnx.ModelProto, judged: JudgedTensors) -> Side:
    outputs = output_names(reference)
    inner = [name for name in judged.inner if name not in outputs]
    return Side(reference, [*outputs, *inner], exact=False)


def _count_bytes(outputs: Outputs) -> int:
    return sum(getattr(array, "nbytes", 0) for array in outputs)
