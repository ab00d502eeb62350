"""From data to encodings: `collect_statistics`, one pass over the feeds, and `calibrate`, no data at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibrators import calibrator_by_name
from onnxfq.calibrators.fixed import is_fixed
from onnxfq.calibrators.groups import group_ranges
from onnxfq.encoding import Encoding, Encodings
from onnxfq.errors import PlanError, StatisticsError
from onnxfq.feeds import Feed
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.passes.insert_observers import OBSERVE_OUTPUTS, InsertObservers, observe_output
from onnxfq.plan import Placement, Plan
from onnxfq.qparams import ParamRules, choose_qparams
from onnxfq.runtime.session import Progress, Session
from onnxfq.spec import QuantSpec
from onnxfq.statistics import BIN_COUNT, Statistics, TensorStatistics


def collect_statistics(
    model: Model, plan: Plan, feeds: Iterable[Feed], *, threads: int = 0, progress: Progress | None = None
) -> Statistics:
    """Run the observed model over all feeds, once, and return what its activations were.

    Memory does not grow with the number of feeds. Raises StatisticsError that names tensor, feed and
    counts at the first NaN or infinity, DataError for feeds that do not fit.
    """
    names = [placement.tensor for placement in plan.activations]
    sums = {name: _Accumulator(name) for name in names}
    session = Session(InsertObservers(plan).run(model).model.proto, threads)
    outputs = [observe_output(name, output) for name in names for output in OBSERVE_OUTPUTS]
    done = 0
    for feed in feeds:
        results = session.run(feed, outputs) if names else []
        for index, name in enumerate(names):
            sums[name].add(results[4 * index : 4 * index + 4], done)
        done += 1
        if progress is not None:
            progress(done)
    return Statistics(model.sha256, done, {name: one.result() for name, one in sums.items()})


def calibrate(model: Model, plan: Plan, statistics: Statistics, calibrator: str | None = None) -> Encodings:
    """Return scale and zero point for every placement: activations from statistics, weights from `model`.

    calibrator: for all activations but those with a fixed range, in place of the plan's own.
    Pure: the same arguments give the same encodings, in seconds and without inference. Raises
    PlanError or StatisticsError when plan, statistics and model do not belong together.
    """
    plan.check_model(model.sha256)
    statistics.check_model(model.sha256)
    encodings = [_encode_activation(p, statistics[p.tensor], calibrator) for p in plan.activations]
    encodings += [_encode_weight(p, _weight(model, p)) for p in plan.weights]
    return Encodings(model_sha256=model.sha256, encodings=tuple(encodings))


def replaced_calibrator(spec: QuantSpec, calibrator: str | None) -> QuantSpec:
    """Return `spec` with another calibrator, if one is given and its own is not a fixed range."""
    if calibrator is None or is_fixed(spec.calibrator):
        return spec
    return spec.model_copy(update={"calibrator": calibrator})


class _Accumulator:
    """Merges an observer's results; the histogram is held dense, so a merge touches only what came."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        self.rmin, self.rmax = float("inf"), float("-inf")
        self.counts = np.zeros(4, np.int64)
        self.histogram = np.zeros(BIN_COUNT, np.int64)

    def add(self, results: list[NDArray[Any]], feed: int) -> None:
        limits, counts, bins, bin_counts = results
        _, nans, infinities, _ = counts.tolist()
        if nans or infinities:
            raise StatisticsError(
                f"tensor {self.tensor!r} has {nans} NaN and {infinities} infinite values at feed {feed}; "
                "remove that sample, or leave the tensor in float with an override"
            )
        self.rmin = min(self.rmin, float(limits[0]))
        self.rmax = max(self.rmax, float(limits[1]))
        self.counts += counts
        self.histogram[bins] += bin_counts

    def result(self) -> TensorStatistics:
        if self.counts[0] == 0:
            raise StatisticsError(
                f"tensor {self.tensor!r} was empty in every feed; give data that reaches it, or leave it in "
                "float with an override"
            )
        bins = np.flatnonzero(self.histogram).astype(np.int32)
        totals = (int(count) for count in self.counts)
        return TensorStatistics(self.rmin, self.rmax, *totals, bins=bins, counts=self.histogram[bins])


def _encode_activation(
    placement: Placement, statistics: TensorStatistics, calibrator: str | None
) -> Encoding:
    spec = replaced_calibrator(placement.spec, calibrator)
    try:
        limits = calibrator_by_name(spec.calibrator)(statistics, spec)
    except StatisticsError as error:
        raise StatisticsError(f"tensor {placement.tensor!r}: {error}") from None
    return _encode(placement.tensor, spec, *map(np.asarray, limits))


def _encode(tensor: str, spec: QuantSpec, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> Encoding:
    rules = ParamRules(power_of_two=spec.power_of_two)
    return Encoding.of(tensor, spec, *choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules))


def _weight(model: Model, placement: Placement) -> NDArray[np.float32]:
    values = weight_array(model, placement.tensor)
    if not np.isfinite(values).all():
        raise PlanError(
            f"weight {placement.tensor!r} holds NaN or infinities; repair the model or leave it in float"
        )
    return np.asarray(values, np.float32)


def _encode_weight(placement: Placement, values: NDArray[np.float32]) -> Encoding:
    return _encode(placement.tensor, placement.spec, *group_ranges(values, placement.spec))
