"""`gather_moments`: second moments of the inputs of layers, or their ranges alone, over a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from onnxfq.calibration.statistics import Statistics
from onnxfq.calibration.statistics.input_means import ENDS, ChannelEnds
from onnxfq.calibration.statistics.kind import InputKey
from onnxfq.calibration.statistics.second_moments import InputSums
from onnxfq.calibration.weights import METHODS, Moments
from onnxfq.choices import MOMENTS_MEMORY
from onnxfq.data import Data, DataDigest, Feeds
from onnxfq.documents.plan import Plan
from onnxfq.documents.rounding import NEAREST
from onnxfq.errors import RecipeError, StatisticsError
from onnxfq.execution.cluster import Cluster
from onnxfq.execution.float_runs import FloatRuns
from onnxfq.execution.gathering import Tally
from onnxfq.execution.spread_runs import SpreadRuns
from onnxfq.graph.model import Model
from onnxfq.layers.moments import (
    Part,
    layer_keys,
    moments_of_inputs,
    open_runs,
    read_ends,
    sample_inputs,
)
from onnxfq.layers.weighted_layers import WeightedLayer, find_layers
from onnxfq.stages.options import RunOptions, open_feeds, shows_progress
from onnxfq.support.interrupts import note_interrupts
from onnxfq.support.progress import counting
from onnxfq.targets.target import prepare_model


@shows_progress
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
    RuntimeLibraryError without ray or its cluster, KeyboardInterrupt for one before the first input was done;
    later ones leave a file that is not complete.
    """
    options = options or RunOptions()
    plan.check_model(model.sha256)
    model = prepare_model(model, plan.target)
    layers = _layers(model, plan)
    keys = layer_keys(layers)
    feeds = open_feeds(model.proto, data, options.batch, options.data)
    given = ranges if ranges is None or isinstance(ranges, Moments) else Moments.load(ranges)
    if given is not None:
        given.statistics.check_model(model.sha256)
        given.check_inputs(keys)
    progress = counting("moments", feeds.runs)
    digest = _read_through(feeds)
    # In place of feeds their samples are counted: the file has the same bytes for any batches.
    found = Statistics(model.sha256, digest.samples, {}, data=digest)
    with ExitStack() as opened:
        stopped = opened.enter_context(note_interrupts())
        cluster = None if ray is None else opened.enter_context(Cluster(ray, options.threads))

        def open_here(left: Sequence[WeightedLayer]) -> FloatRuns | SpreadRuns:
            return opened.enter_context(closing(open_runs(model, left, options.threads, memory, cluster)))

        def find_ranges() -> dict[InputKey, ChannelEnds]:
            """Return the ranges of the data. Raises KeyboardInterrupt if this is interrupted."""
            readers = {key: partial(read_ends, key) for key in keys}
            found: dict[InputKey, ChannelEnds] = {}
            for ends in Tally(0, progress, stopped).over(open_here(layers).read(feeds, readers)):
                found = {key: value.merge(found.get(key, value)) for key, value in ends.items()}
            if stopped():
                raise KeyboardInterrupt
            return found

        def moments_of(left: Sequence[WeightedLayer]) -> Iterator[Part]:
            known = None if given is None else given.ranges
            yield from sample_inputs(
                open_here(left), left, feeds, whole.samples, memory, known, 0, progress, stopped
            )

        if ranges_only:
            return Moments(replace(found, values=ENDS.to_keys(find_ranges())).save(output))
        whole = digest if given is None else given.whole
        found = replace(found, whole=DataDigest(whole.value, whole.samples))
        done = {} if start is None else _check_start(start, found, keys)
        left = [layer for layer in layers if not done.keys() >= set(layer_keys([layer]))]
        new = (one for one in moments_of_inputs(moments_of(left)) if one[0] not in done)
        items = chain(done.items(), _until_stopped(new, stopped))
        return Moments(found.save(output, items, len(keys)))


def _check_start(start: Moments, found: Statistics, keys: Sequence[InputKey]) -> Mapping[InputKey, InputSums]:
    """Return the moments of an interrupted run. Raises StatisticsError if it gathered something else."""
    start.statistics.check_model(found.model_sha256)
    old, new = start.statistics.data, found.data
    if (old, start.whole) != (new, found.whole):
        raise StatisticsError(
            f"the interrupted run read {old.samples} samples with digest {old.hex[:12]}, these are "
            f"{new.samples} with {new.hex[:12]}; give the same data and --ranges-from"
        )
    odd = [tensor for tensor, view in start.sums if (tensor, view) not in keys]
    if odd:
        raise StatisticsError(
            f"the interrupted run gathered moments of tensor {odd[0]!r}, by which this recipe rounds no "
            "weight; give the same recipe"
        )
    return start.sums


def _until_stopped(
    moments: Iterable[tuple[InputKey, InputSums]], stopped: Callable[[], bool]
) -> Iterator[tuple[InputKey, InputSums]]:
    """Yield what is gathered before an interruption. Raises KeyboardInterrupt if that is nothing."""
    count = 0
    for one in moments:
        yield one
        count += 1
        if stopped():
            return
    if stopped() and not count:
        raise KeyboardInterrupt


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
