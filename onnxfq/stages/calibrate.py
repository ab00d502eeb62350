"""`calibrate`: from statistics to encodings, without data or inference."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.calibration.calibrators.equalized import equalized_qparams
from onnxfq.calibration.calibrators.groups import group_ranges, observed_ranges
from onnxfq.calibration.statistics import Statistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError, StatisticsError
from onnxfq.graph.constants import weight_array
from onnxfq.graph.index import GraphIndex
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.stages.derived_scales import encode_constant, encode_dynamic

log = logging.getLogger(__name__)

_LISTED = 8


def calibrate(
    model: Model,
    plan: Plan,
    statistics: Statistics,
    calibrator: str | None = None,
    weights: Sequence[Encoding] | None = None,
) -> Encodings:
    """Return scale and zero point for every placement: activations from statistics, weights from `model`.

    calibrator: for all activations but those with a fixed range, in place of the plan's own. weights: what
    `encode_weights` gave for the same plan, so that several calibrators do its work once. Activations that
    had no finite value, as those of a branch that was never taken, get none, with a warning: what needs them
    stays in float.
    Pure: the same arguments give the same encodings, in seconds and without inference. Raises
    PlanError or StatisticsError when plan, statistics and model do not belong together.
    """
    plan.check_model(model.sha256)
    statistics.check_model(model.sha256)
    chosen = None if calibrator is None else Calibrator.parse(calibrator)
    absent = _without_values(model, plan, statistics)
    plan = calibrated_part(plan, absent)
    encodings = [
        encode_dynamic(p, statistics[p.tensor])
        if p.spec.dynamic
        else _encode_activation(replace_calibrator(p, chosen), statistics)
        for p in plan.activations
    ]
    _tell_dead_groups(plan, statistics)
    encodings += [encode_dynamic(p) for p in plan.unobserved]
    encodings += encode_weights(model, plan) if weights is None else _of_plan(plan, weights)
    return Encodings(
        model_sha256=model.sha256,
        encodings=tuple(encodings),
        without_values=absent,
        statistics_sha256=statistics.sha256,
        data_sha256=f"{statistics.data:064x}" if statistics.data else "",
    )


def encode_weights(model: Model, plan: Plan) -> tuple[Encoding, ...]:
    """Return scale and zero point of the weights of `plan`, which hang on no data.

    Raises PlanError for weights that hold NaN or infinities.
    """
    return tuple(_encode_weight(p, _weight(model, p)) for p in plan.weights)


def _of_plan(plan: Plan, weights: Sequence[Encoding]) -> list[Encoding]:
    """Return the encodings of the plan's weights. Raises PlanError when one is missing or of another spec."""
    known = {encoding.tensor: encoding for encoding in weights}
    for placement in plan.weights:
        found = known.get(placement.tensor)
        wanted = (placement.spec, placement.calibrator)
        if found is None or (found.spec, found.calibrator) != wanted:
            has = "no encoding" if found is None else f"an encoding as {found.spec}"
            raise PlanError(
                f"weight {placement.tensor!r} is planned as {placement.spec} and has {has}; encode the "
                "weights of this plan"
            )
    return [known[placement.tensor] for placement in plan.weights]


def replace_calibrator(placement: Placement, calibrator: Calibrator | None) -> Placement:
    """Return `placement` with another calibrator, if there is one and no rule fixes its range."""
    if calibrator is None or placement.calibrator.is_fixed or placement.spec.equalized:
        return placement
    return placement.model_copy(update={"calibrator": calibrator})


def calibrated_part(plan: Plan, without_values: tuple[str, ...]) -> Plan:
    """Return `plan` with what had no value left in float. Raises StatisticsError when that is everything."""
    if not without_values:
        return plan
    part = plan.without(without_values, "no run of the calibration data gave it a value")
    if not part.placements:
        raise StatisticsError(
            f"no run of the calibration data gave tensor {without_values[0]!r} a value, and without it "
            "nothing is left to quantize; give data that reaches it"
        )
    return part


def _without_values(model: Model, plan: Plan, statistics: Statistics) -> tuple[str, ...]:
    """Return the activations that no run gave a finite value; say so, a line for each branch."""
    absent = tuple(p.tensor for p in plan.activations if not statistics[p.tensor].finite)
    places = GraphIndex.of_model(model.proto).enclosing if absent else {}
    told: dict[str, list[str]] = {}
    for tensor in absent:
        told.setdefault(places.get(tensor, ""), []).append(tensor)
    for place, tensors in told.items():
        where = f"{place} was not taken: " if place else ""
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        log.warning(
            "%sthe calibration data gave no finite value to tensor %r%s; what needs it stays in float",
            where,
            tensors[0],
            more,
        )
    return absent


def _encode_activation(placement: Placement, statistics: Statistics) -> Encoding:
    spec, name = placement.spec, placement.tensor
    if spec.equalized:
        return placement.encode(*equalized_qparams(statistics.of_channels(name), spec))
    groups = None if spec.granularity == PER_TENSOR else statistics.of_groups(name, spec.granularity)
    try:
        if groups is None:
            limits = placement.calibrator(statistics[name], spec)
            return _encode(placement, *map(np.asarray, limits))
        rmin, rmax = observed_ranges(groups, spec, placement.calibrator)
    except StatisticsError as error:
        raise StatisticsError(f"tensor {name!r}: {error}") from None
    return _encode(placement, rmin, rmax)


def _tell_dead_groups(plan: Plan, statistics: Statistics) -> None:
    """Log how many channels and blocks of activations were 0 in all feeds, in one line: there may be many."""
    dead: dict[str, NDArray[np.int64]] = {}
    total = 0
    for placement in plan.activations:
        groups = statistics.groups.get(placement.tensor)
        if groups is None or placement.spec.observed_granularity != groups.granularity:
            continue
        total += groups.count
        found = np.flatnonzero(groups.totals[:, 3] == groups.finite)
        if found.size:
            dead[placement.tensor] = found
    if dead:
        first, channels = next(iter(dead.items()))
        log.warning(
            "%d of %d channels and blocks of activations had no value but 0 (%s of %r%s); their scale is 1",
            sum(found.size for found in dead.values()),
            total,
            _listed(channels),
            first,
            f", and of {len(dead) - 1} more tensors" * (len(dead) > 1),
        )


def _encode(placement: Placement, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> Encoding:
    spec = placement.spec
    rules = spec.param_rules(placement.float_type)
    return placement.encode(*choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules))


def _weight(model: Model, placement: Placement) -> NDArray[np.float32]:
    return np.asarray(weight_array(model, placement.tensor), np.float32)


def _refuse_nonfinite(placement: Placement, values: NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise PlanError(
            f"weight {placement.tensor!r} holds NaN or infinities; repair the model or leave it in float"
        )


def _encode_weight(placement: Placement, values: NDArray[np.float32]) -> Encoding:
    by_ends = placement.spec.scale_type == "float32" and placement.calibrator == MINMAX
    if not by_ends:
        _refuse_nonfinite(placement, values)
    if placement.spec.scale_type != "float32":
        return encode_constant(placement, values)
    rmin, rmax = group_ranges(values, placement.spec, placement.calibrator)
    if by_ends:  # the ends are not finite if a value is not: one look at all of them less
        _refuse_nonfinite(placement, np.stack([rmin, rmax]))
    _tell_dead_channels(placement, rmin, rmax)
    return _encode(placement, rmin, rmax)


def _tell_dead_channels(placement: Placement, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> None:
    """Log which channels of a weight are all zero: any scale is right for them, and 1 is taken."""
    dead = np.flatnonzero((rmin == 0) & (rmax == 0))
    granularity = placement.spec.granularity
    if granularity.axis is None or granularity.block_size is not None or not dead.size:
        return
    log.warning(
        "weight %r: %d of %d channels are all zero (%s); their scale is 1",
        placement.tensor,
        dead.size,
        rmin.size,
        _listed(dead),
    )


def _listed(channels: NDArray[np.int64]) -> str:
    more = ", ..." if channels.size > _LISTED else ""
    return ", ".join(str(channel) for channel in channels[:_LISTED]) + more
