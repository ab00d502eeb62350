"""`calibrate`: encodings from statistics, without data or inference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators import MINMAX, Calibrator
from onnxfq.calibration.calibrators.groups import (
    Member,
    calibrate_groups,
    choose_channel_ranges,
    choose_common_ranges,
    choose_equalized_qparams,
    group_ranges,
)
from onnxfq.calibration.statistics import Statistics, TensorStatistics
from onnxfq.documents.encodings import Encoding, Encodings
from onnxfq.documents.plan import Placement, Plan
from onnxfq.errors import PlanError, StatisticsError
from onnxfq.graph.bounds import UNKNOWN, hull
from onnxfq.graph.constants import weight_array
from onnxfq.graph.model import Model
from onnxfq.numerics.granularity import PER_TENSOR
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.placement.last_concats import APART, find_apart
from onnxfq.placement.masked_scores import find_floors, raise_floors
from onnxfq.placement.rotary_pairs import join_rotary_pairs
from onnxfq.stages.derived_scales import encode_biases, encode_constant, encode_dynamic, fit_weights_to_biases
from onnxfq.stages.limits import describe_limits, find_unreached
from onnxfq.stages.stored_weights import compare_stored, encode_on_grid
from onnxfq.stages.zeroed_values import warn_zeroed_values
from onnxfq.support.groups import group_pairs
from onnxfq.support.reasons import Reason
from onnxfq.targets.target import prepare_model

log = logging.getLogger(__name__)

_LISTED = 8
_FARTHEST = 2.0**126
"""Largest magnitude of an end of a range: the last number of a grid may lie a step beyond, and is finite."""


def calibrate(
    model: Model,
    plan: Plan,
    statistics: Statistics,
    calibrator: str | None = None,
    weights: Sequence[Encoding] | None = None,
) -> Encodings:
    """Return scale and zero point for every placement: activations from statistics, weights from `model`.

    Activations without a finite value, such as in a branch that never ran, get no encoding, with a warning;
    nodes that need them stay in float. The function is pure: equal arguments give equal encodings, in
    seconds.

    Args:
        model: the float model that the plan was made for.
        plan: the tensors to encode.
        statistics: of the activations of `plan`.
        calibrator: overrides the plan's calibrators, except for activations with a fixed range.
        weights: the result of `encode_weights` for the same plan, so that several calibrators share it.

    Raises PlanError or StatisticsError if plan, statistics and model do not belong together.
    """
    calibrated = calibrate_plan(model, plan, statistics, calibrator, weights)
    encodings = calibrated.encodings
    warn_zeroed_values(model, plan, statistics, encodings)
    for line in filter(None, (compare_stored(model, *calibrated).line, describe_limits(model, encodings))):
        log.warning("%s", line)
    return encodings


class Calibrated(NamedTuple):
    """Encodings, and the part of a plan that they encode; calibrating returns both.

    Attributes:
        plan: without tensors that no run gave a value, and without bridges that are refused a common scale.
        encodings: of all placements of `plan`.
    """

    plan: Plan
    encodings: Encodings

    @classmethod
    def of(cls, plan: Plan, encodings: Encodings) -> Calibrated:
        """Return the part of `plan` that `encodings` encode. Raises StatisticsError if nothing is left."""
        part = _select_part(plan, encodings.without_values, encodings.unshared)
        return cls(_part_ranges(part, encodings.apart), encodings)


def calibrate_plan(
    model: Model,
    plan: Plan,
    statistics: Statistics,
    calibrator: str | None = None,
    weights: Sequence[Encoding] | None = None,
) -> Calibrated:
    """Return the encodings of `calibrate` with their part of the plan, without warnings of what they lose."""
    plan.check_model(model.sha256)
    statistics.check_model(model.sha256)
    model = prepare_model(model, plan.target)
    chosen = None if calibrator is None else Calibrator.parse(calibrator)
    absent = _find_without_values(model, plan, statistics)
    unshared = plan.incomplete_bridges
    whole, plan = plan, _select_part(plan, absent, unshared)
    apart = tuple(find_apart(model.index, plan, statistics))
    plan = _part_ranges(plan, apart)
    floors, digest = find_floors(model, plan, statistics), statistics.sha256
    statistics = raise_floors(statistics, floors)
    ranges, refused = _common_ranges(model, plan, statistics, chosen)
    plan = plan.without_bridges(refused, _OWN_SCALES)
    encodings = [
        encode_dynamic(p, statistics[p.tensor])
        if p.spec.dynamic
        else _encode_activation(replace_calibrator(p, chosen), statistics, ranges, model)
        for p in plan.activations
    ]
    encodings = join_rotary_pairs(model, plan, encodings)
    _tell_dead_groups(plan, statistics)
    encodings += [encode_dynamic(p) for p in plan.unobserved]
    made = encode_weights(model, plan) if weights is None else _select_weights(plan, weights)
    encodings += [_raise_constant(model, plan, one, floors) for one in made]
    encodings = fit_weights_to_biases(model, plan, encodings)
    encodings += encode_biases(model, plan, encodings)
    chosen_encodings = Encodings(
        model_sha256=model.sha256,
        encodings=tuple(encodings),
        without_values=absent,
        unshared=(*unshared, *refused),
        apart=apart,
        unreached=find_unreached(model, statistics),
        statistics_sha256=digest,
        data_sha256=statistics.data.hex if statistics.data.samples else "",
    )
    return Calibrated.of(whole, chosen_encodings)


def encode_weights(
    model: Model, plan: Plan, progress: Callable[[int], None] | None = None
) -> tuple[Encoding, ...]:
    """Return scale and zero point of the weights of `plan`, which do not depend on data.

    A weight that the source stores as integers stays on its grid if its format has it.

    Args:
        model: the float model, as the target of the plan prepares it.
        plan: with the weights.
        progress: called with the number of weights done.

    Raises PlanError for weights that hold NaN or infinities.
    """
    made = []
    for placement in plan.weights:
        values = _weight(model, placement)
        encoding = _encode_weight(placement, values)
        stored = model.stored.get(placement.tensor)
        made.append(encoding if stored is None else encode_on_grid(placement, values, stored.scale, encoding))
        if progress is not None:
            progress(len(made))
    return tuple(made)


def _raise_constant(model: Model, plan: Plan, encoding: Encoding, floors: Mapping[str, float]) -> Encoding:
    """Return the encoding of a constant, of a range from its floor on if it has one."""
    floor = floors.get(encoding.tensor)
    if floor is None or encoding.scale.ndim:
        return encoding
    placement = next(p for p in plan.weights if p.tensor == encoding.tensor)
    values = np.maximum(_weight(model, placement), np.float32(floor))
    return _encode_weight(placement, values)


def _select_weights(plan: Plan, weights: Sequence[Encoding]) -> list[Encoding]:
    """Return the encodings of the plan's weights. Raises PlanError if one is missing or has another spec."""
    known = {encoding.tensor: encoding for encoding in weights}
    for placement in plan.weights:
        found = known.get(placement.tensor)
        wanted = (placement.spec, placement.calibrator)
        if found is None or (found.spec, found.calibrator) != wanted:
            has = "no encoding" if found is None else f"an encoding as {found.spec}"
            raise PlanError(
                f"weight {placement.tensor!r} is planned as {placement.spec} but has {has}; encode the "
                "weights of this plan"
            )
    return [known[placement.tensor] for placement in plan.weights]


def replace_calibrator(placement: Placement, calibrator: Calibrator | None) -> Placement:
    """Return `placement` with another calibrator, unless that is None or a rule fixes the range."""
    if calibrator is None or placement.calibrator.is_fixed or placement.observes_channels:
        return placement
    return placement.model_copy(update={"calibrator": calibrator})


_OWN_SCALES = Reason(
    "own-scales",
    "one scale for its inputs and output would cost them more than a bit, or is unknown",
)


def _select_part(plan: Plan, without_values: tuple[str, ...], unshared: tuple[str, ...]) -> Plan:
    """Return `plan` with tensors without values and bridges without a common scale left in float."""
    plan = plan.without_bridges(unshared, _OWN_SCALES)
    if not without_values:
        return plan
    part = plan.without(without_values, "no run of the calibration data gave it a value")
    if not part.placements:
        raise StatisticsError(
            f"the calibration data gave tensor {without_values[0]!r} no value, and without it nothing is "
            "left to quantize; give data that reaches it"
        )
    return part


def _part_ranges(plan: Plan, apart: Sequence[str]) -> Plan:
    """Return `plan` with the results in float that join ranges far apart, if something else is quantized."""
    part = plan.without(apart, APART) if apart else plan
    return part if part.placements else plan


def _find_without_values(model: Model, plan: Plan, statistics: Statistics) -> tuple[str, ...]:
    """Return the activations without a finite value in any run; warn once per branch."""
    absent = tuple(p.tensor for p in plan.activations if not statistics[p.tensor].finite)
    places = model.index.enclosing if absent else {}
    for place, tensors in group_pairs((places.get(tensor, ""), tensor) for tensor in absent).items():
        where = f"{place} was not taken: " if place else ""
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        log.warning(
            f"{where}the calibration data gave no finite value to tensor {tensors[0]!r}{more}; nodes that "
            "need it stay in float"
        )
    return absent


def _common_ranges(
    model: Model, plan: Plan, statistics: Statistics, chosen: Calibrator | None
) -> tuple[dict[str, tuple[float, float]], tuple[str, ...]]:
    """Return the ranges of the tensors of bridges with one scale, and the bridges that are refused one."""
    wanted = {bridge.node: bridge.tensors for bridge in plan.bridges if bridge.one_scale}
    required = {bridge.node for bridge in plan.bridges if bridge.required}
    tensors = {tensor for group in wanted.values() for tensor in group}
    placements = {p.tensor: replace_calibrator(p, chosen) for p in plan.activations if p.tensor in tensors}
    members = {
        name: Member(statistics[name], _calibrated_range(p, statistics, model), p.spec, p.calibrator.is_fixed)
        for name, p in placements.items()
    }
    members |= {p.tensor: _constant_member(model, p) for p in plan.weights if p.tensor in tensors}
    counted = {name for name, p in placements.items() if any(use.node not in wanted for use in p.uses)}
    ranges, refused = choose_common_ranges(wanted, members, counted, required)
    if refused:
        first, count = refused[0], len(refused)
        log.info("%d operators without a common scale, such as %r: %s", count, first, _OWN_SCALES)
    return ranges, refused


def _constant_member(model: Model, placement: Placement) -> Member:
    """Return the member of a table, such as of words: its own values fix its range."""
    values = TensorStatistics.from_array(_weight(model, placement))
    return Member(values, placement.calibrator(values, placement.spec), placement.spec, fixed=True)


def _calibrated_range(placement: Placement, statistics: Statistics, model: Model) -> tuple[float, float]:
    """Return the range of a tensor; beyond the values that are known it ends at the bounds."""
    seen = statistics[placement.tensor]
    try:
        ends = placement.calibrator(seen, placement.spec)
    except StatisticsError as error:
        raise StatisticsError(f"tensor {placement.tensor!r}: {error}") from None
    if placement.calibrator.is_fixed:
        return ends
    bounds = model.index.bounds.get(placement.tensor, UNKNOWN)
    low, high = np.clip(ends, *hull([bounds, (seen.rmin, seen.rmax)])).tolist()
    return low, high


def _encode_activation(
    placement: Placement, statistics: Statistics, ranges: Mapping[str, tuple[float, float]], model: Model
) -> Encoding:
    spec, name = placement.spec, placement.tensor
    if spec.equalized:
        return placement.encode(*choose_equalized_qparams(statistics.of_channels(name), spec))
    if name in ranges:
        return _encode(placement, *map(np.asarray, ranges[name]))
    if placement.observes_channels:
        samples = statistics.data.samples or statistics.feeds
        return _encode(placement, *choose_channel_ranges(statistics.of_channels(name), samples))
    groups = None if spec.granularity == PER_TENSOR else statistics.of_groups(name, spec.granularity)
    if groups is None:
        return _encode(placement, *map(np.asarray, _calibrated_range(placement, statistics, model)))
    try:
        rmin, rmax = calibrate_groups(groups, spec, placement.calibrator)
    except StatisticsError as error:
        raise StatisticsError(f"tensor {name!r}: {error}") from None
    return _encode(placement, rmin, rmax)


def _tell_dead_groups(plan: Plan, statistics: Statistics) -> None:
    """Log the number of channels and blocks of activations that were 0 in all feeds, in one line."""
    dead: dict[str, NDArray[np.int64]] = {}
    total = 0
    for placement in plan.activations:
        groups = statistics.groups.get(placement.tensor)
        if groups is None or placement.observed_granularity != groups.granularity:
            continue
        total += groups.count
        found = np.flatnonzero(groups.totals[:, 3] == groups.finite)
        if found.size:
            dead[placement.tensor] = found
    if dead:
        first, channels = next(iter(dead.items()))
        log.warning(
            f"{sum(found.size for found in dead.values())} of {total} channels and blocks of activations "
            f"had no value but 0 ({_format_channels(channels)} of "
            f"{first!r}{f', and of {len(dead) - 1} more tensors' * (len(dead) > 1)}); their scale is 1"
        )


def _encode(placement: Placement, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> Encoding:
    spec = placement.spec
    rules = spec.param_rules(placement.float_type)
    rmin, rmax = np.clip(rmin, -_FARTHEST, _FARTHEST), np.clip(rmax, -_FARTHEST, _FARTHEST)
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
    if by_ends:  # a nonfinite value makes an end nonfinite, so the values need no second pass
        _refuse_nonfinite(placement, np.stack([rmin, rmax]))
    _tell_dead_channels(placement, rmin, rmax)
    return _encode(placement, rmin, rmax)


def _tell_dead_channels(placement: Placement, rmin: NDArray[np.float64], rmax: NDArray[np.float64]) -> None:
    """Log the channels of a weight that are all zero: every scale represents them, 1 is used."""
    dead = np.flatnonzero((rmin == 0) & (rmax == 0))
    granularity = placement.spec.granularity
    if granularity.axis is None or granularity.block_size is not None or not dead.size:
        return
    log.warning(
        f"weight {placement.tensor!r}: {dead.size} of {rmin.size} channels are all zero "
        f"({_format_channels(dead)}); their scale is 1"
    )


def _format_channels(channels: NDArray[np.int64]) -> str:
    more = ", ..." if channels.size > _LISTED else ""
    return ", ".join(str(channel) for channel in channels[:_LISTED]) + more
