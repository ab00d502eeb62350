"""Methods of rounding weights by name, and `round_weight` with one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.calibrators.constant_mse import least_error_ranges, least_error_scales
from onnxfq.calibration.weights.gptq import round_columns
from onnxfq.calibration.weights.grid import Floats, Matrices, WeightGrid
from onnxfq.calibration.weights.moments import InputMoments, Residual
from onnxfq.calibration.weights.qronos import find_change
from onnxfq.calibration.weights.view import MatrixView
from onnxfq.numerics.block_scales import ScaleRule, Scales
from onnxfq.numerics.float_types import FloatType
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec


@dataclass(frozen=True)
class RoundingMethod:
    """A method of rounding.

    Attributes:
        change: what is added to the weights before they are rounded, from them, the moments of the inputs and
            what is left of the outputs; None for nothing.
        sequential: whether layers are rounded one after the other, with inputs of the quantized model.
    """

    change: Callable[[Floats, InputMoments, Residual], Matrices | None]
    sequential: bool = False


METHODS: dict[str, RoundingMethod] = {
    "gptq": RoundingMethod(lambda weights, moments, residual: None),
    "qronos": RoundingMethod(
        lambda weights, moments, residual: moments.check(lambda: find_change(weights, moments, residual)),
        sequential=True,
    ),
}


class RoundedWeight(NamedTuple):
    """A weight on its grid.

    Attributes:
        values: float32, in the shape of the weight.
        scales: of the grid.
        before: sum of the squared errors of the outputs with every weight at the nearest number.
        after: the same with `values`.
        signal: sum of the squares of the outputs.
    """

    values: NDArray[np.float32]
    scales: Scales
    before: float
    after: float
    signal: float


class RoundingJob(NamedTuple):
    """A weight, and everything that decides its rounding.

    Attributes:
        values: the weight, float32.
        spec: its format.
        nearest: scales of the plan's calibrator.
        view: the weight as matrices.
        moments: of the inputs.
        method: a name in METHODS.
        float_type: type of the weight in the model, which its scales have too.
    """

    values: NDArray[np.float32]
    spec: QuantSpec
    nearest: Scales
    view: MatrixView
    moments: InputMoments
    method: str
    float_type: FloatType = "float32"


def round_weight(job: RoundingJob) -> RoundedWeight:
    """Round a weight by the moments of its inputs.

    Each output takes the candidate of least expected error: the nearest numbers on the given scales, or the
    method on scales of least squared error weighted with the diagonal of the moments, or on the given scales.
    If outputs share scales, all take the same.

    Raises StatisticsError for moments of another size or without positive squares.
    """
    values, spec, nearest, view, moments, method, _ = job
    shape, layout = values.shape, Layout(spec.granularity, values.shape)
    weights = view.fold(values)
    moments.check_size(len(weights), weights.shape[2])
    residual, target = moments.residual(weights), weights
    change = METHODS[method].change(weights, moments, residual)
    if change is not None:
        residual, target = residual.after(change), (weights + change).astype(np.float32)

    nothing = np.zeros((), np.float32)

    def grid_of(scales: Scales) -> WeightGrid:
        scale, zero_point = (
            view.fold(layout.expand(params)).astype(np.float32, copy=False) if params.any() else nothing
            for params in (scales.scale, scales.zero_point)
        )
        return WeightGrid(spec.grid, scale, zero_point)

    best, kept = grid_of(nearest).round(weights), nearest
    errors = residual.errors(target - best)
    before = float(errors.sum())
    own = _owners(layout, view, errors.shape)
    for scales in _candidates(job, target):
        found, power = round_columns(target, grid_of(scales), moments.factor)
        reached = residual.errors(target - found, power)
        if own is None:
            better = np.full(errors.shape, reached.sum() < errors.sum())
        else:
            better = reached < errors
        np.copyto(best, found, where=better[..., None])
        errors = np.where(better, reached, errors)
        kept = _choose(kept, scales, better, own)
    return RoundedWeight(view.unfold(best, shape), kept, before, float(errors.sum()), moments.signal(weights))


def _candidates(job: RoundingJob, target: Floats) -> list[Scales]:
    values, spec, nearest, view, moments, _, float_type = job
    wanted = view.unfold(target, values.shape).astype(np.float32, copy=False)
    diagonal = np.diagonal(moments.seen, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1, keepdims=True)
    share = np.where(mean > 0, diagonal / np.where(mean > 0, mean, 1.0), 1.0)
    importance = view.unfold(np.broadcast_to(share[:, None, :], target.shape), values.shape).astype(
        np.float32
    )
    if spec.scale_type == "float32":
        ends = least_error_ranges(wanted, spec, importance)
        scale, zero_point = choose_qparams(*ends, spec.qtype, spec.symmetric, spec.param_rules(float_type))
        return [Scales(scale, zero_point.astype(np.float32), None), nearest]
    rule = ScaleRule(spec.qtype, spec.scale_type, True, nearest.global_scale)
    return [least_error_scales(wanted, rule, spec.granularity, importance), nearest]


def _owners(layout: Layout, view: MatrixView, outputs: tuple[int, ...]) -> NDArray[np.int64] | None:
    """Return the output of each scale, flat, in the shape of a scale; None if outputs share scales."""
    numbers = np.arange(int(np.prod(outputs)), dtype=np.float64).reshape(*outputs, 1)
    spread = view.unfold(
        np.broadcast_to(numbers, view.fold(np.empty(layout.shape, bool)).shape), tuple(layout.shape)
    )
    low, high = layout.reduce(np.minimum, spread, np.inf), layout.reduce(np.maximum, spread, -np.inf)
    return low.astype(np.int64) if (low == high).all() else None


def _choose(one: Scales, other: Scales, better: NDArray[np.bool_], own: NDArray[np.int64] | None) -> Scales:
    """Return the scales of `other` for the outputs where it is better, of `one` for the rest."""
    where = better.all() if own is None else better.reshape(-1)[own]
    scale = np.where(where, other.scale, one.scale)
    zero_point = np.where(where, other.zero_point, one.zero_point)
    return Scales(scale.astype(np.float32), zero_point.astype(np.float32), one.global_scale)
