"""`time_models`: a float model and quantized ones in turn, each in the runtime of its target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onnxfq.data import Data, Feed
from onnxfq.data.model_inputs import input_specs
from onnxfq.documents.timing import OperatorCost, TimedModel, Timing
from onnxfq.errors import OnnxfqError, RuntimeLibraryError
from onnxfq.execution.timing import SECONDS, Clock, compare_turns, find_interval, time_in_turn
from onnxfq.graph.external.weightless import read_structure
from onnxfq.graph.io.load import read_model
from onnxfq.stages.insert import find_target
from onnxfq.stages.options import RunOptions, open_feeds
from onnxfq.targets.target import AnyModel, Opener, target_by_name

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
    clock: Clock | None = None,
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
        clock: tells the time; by default that of the target.

    A model that cannot be timed has a note: its runtime is not on this machine, or refuses it.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for name, model in candidates.items():
        names[find_target(read_structure(model)) or OTHER_TOOLS].append(name)
    models: list[TimedModel] = []
    notes: list[str] = []
    for target, group in names.items():
        opened: list[_OpenModel] = []
        given = [(reference_name, reference), *((name, candidates[name]) for name in group)]
        for name, model in given:
            try:
                opened.append(_OpenModel.of(name, target, model, feed, threads))
            except OnnxfqError as error:
                refused = [name] if opened else group
                notes += [f"{left} was not timed: {error}" for left in refused]
                if not opened:
                    break
        if len(opened) > 1:
            models += _time_in_turn(opened, threads, seconds, clock or target_by_name(target).clock)
    return Timing(threads=threads, models=tuple(models), notes=tuple(notes))


def time_on_data(
    reference: Path, candidates: Mapping[str, AnyModel], data: Data, options: RunOptions
) -> Timing:
    """Return the times of models on the first feed of `data`, which is opened for it, as `time_models`."""
    reader = replace(options.data.unsurveyed.padded, limit=None)
    feed = next(iter(open_feeds(read_model(reference)[0], data, options.batch, reader)))
    name = f"{reference.name} (reference)" if reference.name in candidates else reference.name
    return time_models(reference, candidates, feed, options.threads, reference_name=name)


def _find_opener(name: str) -> Opener:
    target = target_by_name(name)
    if target.open is None:
        raise RuntimeLibraryError(
            f"target {name} has no runtime on this machine, and no other one tells its time; run the file "
            "where its users do"
        )
    return target.open


@dataclass(frozen=True)
class _OpenModel:
    """A model in the runtime of a target, and what it runs on."""

    name: str
    target: str
    model: AnyModel
    feed: Feed
    run: Callable[[], object]

    @staticmethod
    def of(name: str, target: str, model: AnyModel, feed: Feed, threads: int) -> _OpenModel:
        """Open `model` and run it once. Raises the errors of the runtime."""
        types = {spec.name: spec.dtype for spec in input_specs(read_structure(model))}
        # Inputs may be cast with the rest of a model.
        own = {key: array.astype(types.get(key, array.dtype), copy=False) for key, array in feed.items()}
        run = partial(_find_opener(target)(model, threads), own)
        run()
        return _OpenModel(name, target, model, own, run)


def _time_in_turn(
    opened: Sequence[_OpenModel], threads: int, seconds: float, clock: Clock
) -> list[TimedModel]:
    """Return the times of models of one target; the first is the reference of the others."""
    times = time_in_turn([candidate.run for candidate in opened], clock, seconds)
    timed = []
    for candidate, own in zip(opened, times, strict=True):
        median_ms = 1e3 * find_interval(own).median
        model = TimedModel(
            model=candidate.name, target=candidate.target, least_ms=1e3 * min(own), median_ms=median_ms
        )
        if own is not times[0]:
            ratio = compare_turns(own, times[0])
            figures = {"ratio": ratio.median if ratio.is_borne else None}
            model = model.model_copy(update={**figures, "low": ratio.low, "high": ratio.high})
        profile = target_by_name(candidate.target).profile
        if model.is_slower and profile is not None:
            costs = _rank(profile(candidate.model, threads, candidate.feed))
            model = model.model_copy(update={"costs": costs})
        timed.append(model)
    return timed


def _rank(profile: Mapping[tuple[str, str], float]) -> tuple[OperatorCost, ...]:
    """Return the operators of a profile by their time, the most costly first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for (op_type, _), own in profile.items():
        seconds[op_type].append(own)
    total = sum(map(sum, seconds.values())) or 1.0
    costs = [
        OperatorCost(op_type=op_type, nodes=len(own), share=min(1.0, sum(own) / total))
        for op_type, own in seconds.items()
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.share))
