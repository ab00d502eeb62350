"""`calibrate`: from statistics to encodings, without data or inference."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibrators import calibrator_by_name
from onnxfq.encoding import Encoding, Encodings
from onnxfq.errors import PlanError, StatisticsError
from onnxfq.granularity import PerAxis, PerTensor
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model, body_of_tensors
from onnxfq.made_scales import encode_constant, encode_dynamic
from onnxfq.numerics import expand_params
from onnxfq.plan import Placement, Plan
from onnxfq.qparams import ParamRules, choose_qparams
from onnxfq.spec import QuantSpec
from onnxfq.statistics import Statistics, TensorStatistics

log = logging.getLogger(__name__)


def calibrate(model: Model, plan: Plan, statistics: Statistics, calibrator: str | None = None) -> Encodings:
    """Return scale and zero point for every placement: activations from statistics, weights from `model`.

    calibrator: for all activations, in place of the plan's own. Activations that had no finite value, as
    those of a branch that was never taken, get none, with a warning: what needs them stays in float.
    Pure: the same arguments give the same encodings, in seconds and without inference. Raises
    PlanError or StatisticsError when plan, statistics and model do not belong together.
    """
    plan.check_model(model.sha256)
    statistics.check_model(model.sha256)
    absent = _without_values(model, plan, statistics)
    plan = calibrated_part(plan, absent)
    change = {} if calibrator is None else {"calibrator": calibrator}
    encodings = [
        encode_dynamic(p, statistics[p.tensor])
        if p.spec.dynamic
        else _encode_activation(
            p.model_copy(update={"spec": p.spec.model_copy(update=change)}), statistics[p.tensor]
        )
        for p in plan.activations
    ]
    encodings += [encode_dynamic(p) for p in plan.unobserved]
    encodings += [_encode_weight(p, _weight(model, p)) for p in plan.weights]
    return Encodings(
        model_sha256=model.sha256,
        encodings=tuple(encodings),
        without_values=absent,
        statistics_sha256=statistics.sha256,
    )


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
    places = body_of_tensors(model.proto) if absent else {}
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


def _encode_activation(placement: Placement, statistics: TensorStatistics) -> Encoding:
    spec = placement.spec
    rmin, rmax = calibrator_by_name(spec.calibrator)(statistics, spec.qtype, spec.symmetric)
    return _encode(placement, np.asarray(rmin), np.asarray(rmax))


def _encode(placement: Placement, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> Encoding:
    spec = placement.spec
    rules = ParamRules(spec.power_of_two, spec.zero_point == "fractional", placement.float_type)
    return Encoding.of(placement.tensor, spec, *choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules))


def _weight(model: Model, placement: Placement) -> NDArray[np.float32]:
    values = np.asarray(weight_array(model, placement.tensor), np.float32)
    if not np.isfinite(values).all():
        raise PlanError(
            f"weight {placement.tensor!r} holds NaN or infinities; repair the model or leave it in float"
        )
    return values


def _encode_weight(placement: Placement, values: NDArray[np.float32]) -> Encoding:
    spec = placement.spec
    if spec.scale_type != "float32":
        return encode_constant(placement, values)
    shape = spec.granularity.param_shape(values.shape)
    rmin, rmax = _group_ranges(values, spec, shape)
    return _encode(placement, rmin.reshape(shape), rmax.reshape(shape))


def _group_ranges(
    values: NDArray[np.float32], spec: QuantSpec, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the calibrated (rmin, rmax) of each group of elements that share one scale, flat."""
    count = int(np.prod(shape, dtype=np.int64))
    if spec.calibrator == "minmax" and isinstance(spec.granularity, (PerTensor, PerAxis)):
        kept = None if spec.axis is None else spec.axis % values.ndim
        others = tuple(d for d in range(values.ndim) if d != kept)
        low, high = values.min(others, initial=np.inf), values.max(others, initial=-np.inf)
        return np.asarray(low, np.float64).ravel(), np.asarray(high, np.float64).ravel()
    ids = np.arange(count).reshape(shape)
    groups = expand_params(ids, values.shape, **spec.blocks).ravel()
    flat = values.ravel()
    if spec.calibrator == "minmax":
        rmin, rmax = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(rmin, groups, flat)
        np.maximum.at(rmax, groups, flat)
        return rmin, rmax
    order = np.argsort(groups, kind="stable")
    pieces = np.split(flat[order], np.searchsorted(groups[order], np.arange(1, count)))
    method = calibrator_by_name(spec.calibrator)
    ranges = [method(TensorStatistics.from_array(piece), spec.qtype, spec.symmetric) for piece in pieces]
    return np.asarray([r[0] for r in ranges]), np.asarray([r[1] for r in ranges])
