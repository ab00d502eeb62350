"""Outputs of the float model on the feeds of the comparison, computed once and next to other stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from threading import Event

import onnx

from onnxfq.choices import DeviceChoice
from onnxfq.data import Feed
from onnxfq.execution.sides import LEAST_FEEDS, Outputs, Side, run_sides
from onnxfq.graph.external.sizes import ONE_PIECE, weight_bytes
from onnxfq.graph.patterns.logits import JudgedTensors
from onnxfq.graph.signature import output_names
from onnxfq.runtime.device_choice import choose_device
from onnxfq.runtime.parallel_runs import count_cores

KEPT_BYTES = 64 << 20
"""Most bytes of outputs that are kept."""


class ReferenceRuns:
    """Runs of a float model on feeds that several quantized models are compared on.

    The first LEAST_FEEDS outputs are kept. They are computed in the background, while the main thread
    calibrates and inserts, which takes one core. Models that are compared on a GPU or one at a time, models
    that feed state back, and models with large outputs run when they are compared.
    """

    def __init__(
        self, reference: onnx.ModelProto, judged: JudgedTensors, threads: int, device: DeviceChoice
    ) -> None:
        """Store the float model and what judges it; nothing runs yet."""
        self._side, self._judged = _fetch_all(reference, judged), judged
        self._threads, self._device = threads, device
        self._feeds: list[Feed] = []
        self._stopped = Event()
        self._pool: ThreadPoolExecutor | None = None
        self._outputs: Future[list[Outputs]] | None = None

    def __enter__(self) -> ReferenceRuns:
        """Return the runs."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the run in progress, and drop the rest."""
        self._stop()

    def start(self, feeds: Sequence[Feed]) -> None:
        """Begin to run the first of `feeds`, unless they run already or cannot in the background."""
        first = list(feeds[:LEAST_FEEDS])
        if not first or not self._side.fetches or _is_same(first, self._feeds):
            return
        alone = (self._threads or count_cores()) < 2 or choose_device(self._device) != "cpu"
        if alone or weight_bytes(self._side.proto) > ONE_PIECE:
            return
        self._stop()
        self._stopped.clear()
        self._feeds, self._pool = first, ThreadPoolExecutor(1)
        self._outputs = self._pool.submit(
            keep_outputs, self._side.proto, self._judged, first, self._threads, "cpu", self._stopped.is_set
        )

    def over(self, feeds: Sequence[Feed]) -> Iterator[Outputs] | None:
        """Return the outputs on all of `feeds`; None if none were kept."""
        count = len(self._feeds)
        if self._outputs is None or not _is_same(feeds[:count], self._feeds):
            return None
        kept, rest = self._outputs.result(), feeds[count:]
        more = run_sides([self._side], rest, self._threads, "cpu") if rest else ()
        return chain(kept, (outputs for (outputs,) in more)) if kept else None

    def _stop(self) -> None:
        self._stopped.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._outputs = None


def keep_outputs(
    reference: onnx.ModelProto,
    judged: JudgedTensors,
    feeds: Sequence[Feed],
    threads: int,
    device: DeviceChoice,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Outputs]:
    """Return the outputs of a float model, and the inner tensors of `judged`.

    [] if they are too large, and once `stopped`. A model that feeds state back runs when it is compared.
    """
    side = _fetch_all(reference, judged)
    kept: list[Outputs] = []
    if judged.states or not side.fetches:
        return kept
    with closing(run_sides([side], feeds, threads, device)) as runs:
        for (outputs,) in runs:
            size = sum(getattr(array, "nbytes", 0) for array in outputs)
            if stopped() or size * len(feeds) > KEPT_BYTES:
                return []
            kept.append(outputs)
    return kept


def keep_stream_outputs(
    into: dict[int, tuple[Feed, Outputs]], samples: Sequence[Feed], outputs: Iterable[Outputs]
) -> None:
    """Go through the outputs of a float model on `samples` of a stream; keep them if they are not large."""
    for sample, found in zip(samples, outputs, strict=True):
        if sum(getattr(array, "nbytes", 0) for array in found) * len(samples) <= KEPT_BYTES:
            into[id(sample)] = sample, found


def _fetch_all(reference: onnx.ModelProto, judged: JudgedTensors) -> Side:
    outputs = output_names(reference)
    inner = [name for name in judged.inner if name not in outputs]
    return Side(reference, [*outputs, *inner], exact=False)


def _is_same(some: Sequence[Feed], others: Sequence[Feed]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
