"""`time_models`: a float model and quantized ones in turn, each in the runtime of its target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import onnx

from onnxfq.data import Data, Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.timing import OperatorCost, TimedModel, Timing
from onnxfq.errors import RuntimeLibraryError
from onnxfq.execution.timing import SECONDS, Clock, compare_turns, find_interval, time_in_turn
from onnxfq.graph.io.load import read_model
from onnxfq.stages.insert import TARGET_KEY
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.targets.target import AnyModel, Profiler, Target, target_by_name

OTHER_TOOLS = "onnxruntime"
"""Target of models that name none: ONNX Runtime runs every Q/DQ model."""


def time_models(
    reference: AnyModel,
    candidates: Mapping[str, AnyModel],
    feed: Feed,
    threads: int = 0,
    *,
    reference_name: str = "float",
    seconds: float = SECONDS,
    clock: Clock = perf_counter,
) -> Timing:
    """Return the times of `candidates` and `reference` on `feed`, in turn, by `time_in_turn`.

    A candidate and the reference run in the runtime of the target that the candidate's metadata name, never
    in another one. The result names the costly operators of a candidate that is slower than the reference.

    Args:
        reference: the float model, a proto or a path.
        candidates: models with the same inputs, by name.
        feed: one sample or batch for all runs.
        threads: of each runtime; 0 for its own choice.
        reference_name: name of the reference in the result.
        seconds: time for the models of a target.
        clock: tells the time.

    Raises ModelError for a model that its runtime refuses, DataError if a run fails.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for name, model in candidates.items():
        names[_find_target(model)].append(name)
    models: list[TimedModel] = []
    notes: list[str] = []
    for target, group in names.items():
        side_by_side = {reference_name: reference} | {name: candidates[name] for name in group}
        try:
            models += _time_in_target(target_by_name(target), side_by_side, feed, threads, seconds, clock)
        except RuntimeLibraryError as error:
            notes += [f"{name} was not timed: {error}" for name in group]
    return Timing(threads=threads, models=tuple(models), notes=tuple(notes))


def time_on_data(
    reference: Path, candidates: Mapping[str, AnyModel], data: Data, options: RunOptions
) -> Timing:
    """Return the times of models on the first feed of `data`, which is opened for it, as `time_models`."""
    reader = replace(options.data, survey=False, limit=None)  # one feed is too few for notes on the data
    feed = next(iter(open_feeds(read_model(reference)[0], data, options.batch, reader)))
    return time_models(reference, candidates, feed, options.threads, reference_name=reference.name)


def _find_target(model: AnyModel) -> str:
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    return next((entry.value for entry in proto.metadata_props if entry.key == TARGET_KEY), OTHER_TOOLS)


def _time_in_target(
    target: Target,
    models: Mapping[str, AnyModel],
    feed: Feed,
    threads: int,
    seconds: float,
    clock: Clock,
) -> list[TimedModel]:
    if target.open is None:
        raise RuntimeLibraryError(
            f"target {target.name} has no runtime on this machine, and no other one tells its time; "
            "run the file where its users do"
        )
    feeds = {name: _cast_feed(model, feed) for name, model in models.items()}
    runs: list[Callable[[], object]] = [
        partial(target.open(model, threads), feeds[name]) for name, model in models.items()
    ]
    times = time_in_turn(runs, clock, seconds)
    timed = []
    for name, own in zip(models, times, strict=True):
        one = TimedModel(
            model=name, target=target.name, least_ms=1e3 * min(own), median_ms=1e3 * find_interval(own).median
        )
        if own is not times[0]:
            ratio = compare_turns(own, times[0])
            figures = {"low": ratio.low, "high": ratio.high} | (
                {"ratio": ratio.median} if ratio.is_borne else {}
            )
            one = one.model_copy(update=figures)
        if one.is_slower and target.profile is not None:
            one = one.model_copy(update={"costs": _rank(target.profile, models[name], threads, feeds[name])})
        timed.append(one)
    return timed


def _cast_feed(model: AnyModel, feed: Feed) -> Feed:
    """Return `feed` in the float types of the inputs of `model`, which may be cast with the rest of it."""
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    return {spec.name: feed[spec.name].astype(spec.dtype, copy=False) for spec in input_specs(proto)}


def _rank(profile: Profiler, model: AnyModel, threads: int, feed: Feed) -> tuple[OperatorCost, ...]:
    """Return the operators of `model` by their time, the most costly first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for (op_type, _), own in profile(model, threads, feed).items():
        seconds[op_type].append(own)
    total = sum(map(sum, seconds.values())) or 1.0
    costs = [
        OperatorCost(op_type=op_type, nodes=len(own), share=min(1.0, sum(own) / total))
        for op_type, own in seconds.items()
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.share))
