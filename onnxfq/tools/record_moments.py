"""`gather_moments`: second moments of the inputs of layers, or their ranges alone, over a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics.moments import MomentSums
from onnxfq.calibration.weights import METHODS, Moments
from onnxfq.calibration.weights.moments_file import Key, Ranges
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Data, DataDigest, Feed, Feeds
from onnxfq.documents.plan import Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import RecipeError, StatisticsError
from onnxfq.execution.cluster import Cluster
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.graph.model import Model
from onnxfq.remedies.moments import input_ends, layer_keys, read_tensors, sample_inputs, sums_of_inputs
from onnxfq.remedies.moments_ray import RayMoments
from onnxfq.remedies.weighted_layers import WeightedLayer, find_layers
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.support.interrupts import note_interrupts
from onnxfq.targets.target import prepare_model

_Gathered = tuple[Key, NDArray[np.float64], MomentSums | None]


def gather_moments(
    model: Model,
    plan: Plan,
    data: Data,
    output: str | Path,
    *,
    ranges_only: bool = False,
    ranges: str | Path | Moments | None = None,
    memory: int = MOMENTS_MEMORY,
    start: Moments | None = None,
    ray: str | None = None,
    options: RunOptions | None = None,
) -> Moments:
    """Write the second moments of the inputs of the layers that `plan` rounds by moments, and return them.

    Parts of a data set, on several machines, give the same bits as all of it at once: gather the ranges of
    each part, merge them, and gather the moments of each part with the merged ranges.

    Args:
        model: the float model.
        plan: whose weights ask for a rounding by moments.
        data: the data, or a part of it; it can be read several times.
        output: the file, see `Moments`.
        ranges_only: write the ranges of the channels and no moments.
        ranges: ranges of all parts of the data; those of `data` alone if None.
        memory: bytes that runs side by side, and the sampled inputs in a temporary file, may each take.
        start: moments of an interrupted run over the same data; their inputs are not gathered again.
        ray: address of a Ray cluster whose workers share the data, or "local"; the file is the same.
        options: batch, threads and progress.

    Raises RecipeError if no weight of the plan is rounded by moments alone, StatisticsError for an input that
    holds NaN or infinities or leaves the given ranges and for a `start` of something else,
    RuntimeLibraryError without ray or its cluster, MomentsInterrupted after writing the inputs that are done.
    """
    options = options or RunOptions()
    plan.check_model(model.sha256)
    model = prepare_model(model, plan.target)
    layers = _layers(model, plan)
    feeds = open_feeds(model.proto, data, options.batch, options.data)
    given = ranges if ranges is None or isinstance(ranges, Moments) else Moments.load(ranges)
    if given is not None:
        given.check_model(model.sha256)
        given.check_inputs(layer_keys(layers))
    progress = options.stage("moments", feeds.runs)
    digest = _read_through(feeds)
    samples, whole = digest.samples, digest.hex
    if given is not None:
        samples, whole = given.samples, given.whole or given.data.hex
    known = None if given is None else given.ranges
    keys = layer_keys(layers)
    done: Ranges = {} if start is None else start.ranges
    if start is not None:
        _check_start(start, model, samples, digest, keys)
    left = [layer for layer in layers if not done.keys() >= set(layer_keys([layer]))]
    with ExitStack() as opened:
        if left and ray is not None:
            cluster = opened.enter_context(Cluster(ray, options.threads))
            spread = RayMoments(
                cluster, model, left, feeds, samples, memory=memory, ranges=known, progress=progress
            )
        stopped = opened.enter_context(note_interrupts())
        source = _Stoppable(feeds, stopped)
        found: Iterator[_Gathered]
        if not left:
            found = iter(())
        elif ray is None:
            runs = opened.enter_context(
                closing(FloatRuns(model, read_tensors(left), options.threads, memory, progress))
            )
            if ranges_only:
                found = _ranges(input_ends(runs, source, keys))
            else:
                found = sums_of_inputs(sample_inputs(runs, left, source, samples, memory, known))
        else:
            found = _ranges(spread.ranges) if ranges_only else sums_of_inputs([spread])
        if start is not None:
            kept = ((key, ends, start.of(key)) for key, ends in done.items())
            found = chain(kept, (one for one in found if one[0] not in done))
        found = found if ranges_only else _until_stopped(found, stopped)
        moments = Moments.write(output, model.sha256, samples, digest, found, len(keys), whole)
    if not moments.complete:
        raise MomentsInterrupted(moments)
    return moments


class MomentsInterrupted(KeyboardInterrupt):
    """Interruption of `gather_moments` from outside; `moments` has the inputs that were done."""

    def __init__(self, moments: Moments) -> None:
        """Store the moments gathered so far."""
        super().__init__("gathering moments was interrupted")
        self.moments = moments


def _check_start(start: Moments, model: Model, samples: int, digest: DataDigest, keys: Sequence[Key]) -> None:
    """Raise StatisticsError if the interrupted run gathered something else."""
    start.check_model(model.sha256)
    if (start.samples, start.data) != (samples, digest):
        raise StatisticsError(
            f"the interrupted run read {start.data.samples} samples with digest {start.data.hex[:12]}, these "
            f"are {digest.samples} with {digest.hex[:12]}; give the same data and --ranges-from"
        )
    odd = [tensor for tensor, view in start.ranges if (tensor, view) not in keys]
    if odd:
        raise StatisticsError(
            f"the interrupted run gathered moments of tensor {odd[0]!r}, by which this recipe rounds no "
            "weight; give the same recipe"
        )


class _Stopped(KeyboardInterrupt):
    """An interruption while the data is read."""


@dataclass(frozen=True)
class _Stoppable:
    """Feeds that end with _Stopped once `stopped`."""

    feeds: Feeds
    stopped: Callable[[], bool]

    def __iter__(self) -> Iterator[Feed]:
        for feed in self.feeds:
            if self.stopped():
                raise _Stopped
            yield feed


def _until_stopped(found: Iterable[_Gathered], stopped: Callable[[], bool]) -> Iterator[_Gathered]:
    """Yield what is gathered before an interruption; if that is nothing, it goes on."""
    count = 0
    try:
        for one in found:
            yield one
            count += 1
            if stopped():
                return
    except _Stopped:
        if not count:
            raise


def _ranges(ranges: Ranges) -> Iterator[_Gathered]:
    """Yield each input with its ranges and no sums."""
    return ((key, one, None) for key, one in ranges.items())


def _layers(model: Model, plan: Plan) -> list[WeightedLayer]:
    """Return the layers of the plan that moments of the float model round."""
    asked = {p.tensor: p.rounding for p in plan.weights if p.rounding != NEAREST}
    found = [layer for layer in find_layers(model, plan)[0] if layer.placement.tensor in asked]
    layers = [layer for layer in found if not METHODS[layer.placement.rounding].sequential]
    if not layers:
        names = ", ".join(sorted(set(asked.values()))) or NEAREST
        raise RecipeError(
            f"recipe {plan.recipe} rounds no weight by moments of the float model (its rounding: {names}); "
            "take rounding gptq"
        )
    return layers


def _read_through(feeds: Feeds) -> DataDigest:
    """Return the digest of all samples."""
    for _ in feeds:
        pass
    assert feeds.digest is not None
    return feeds.digest
