"""MSE of constants: the scales of least squared error on the values themselves, for all groups at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.affine import fake_quantize
from onnxfq.numerics.block_scales import (
    HEADROOM,
    ScaleRule,
    Scales,
    choose_scales,
    element_grid,
    global_scale_of,
)
from onnxfq.numerics.granularity import Granularity
from onnxfq.numerics.layout import Layout
from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.qtypes import QType
from onnxfq.numerics.spec import QuantSpec

COARSE, FINE = 16, 4
"""Factors in the first pass, and on each side of the best of them in the second."""

_AT_ONCE = 1 << 16
"""Elements that are searched at once, so that they stay in a core's cache."""

Array = NDArray[np.float64]
_Scales = Callable[[Array, slice], tuple[NDArray[np.float32], NDArray[Any]]]
"""(factors, groups) -> scales and zero points, one for each of these groups."""

_MOVES = (0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2)
"""Factors by which one end of an asymmetric range moves."""


def least_error_ranges(
    values: NDArray[np.float32], spec: QuantSpec, importance: NDArray[np.float32] | None = None
) -> tuple[Array, Array]:
    """Return (rmin, rmax) in the shape of a scale: for each group the range of least squared error.

    A symmetric range limits the magnitudes of a group to a share of the largest one. Shares are tried evenly
    from 1 down to the least possible one, then finely around the best. The full range never has a smaller
    error.
    The least possible share f follows from the n values of a group: below it, the largest value alone has a
    larger error (1 - f)^2 amax^2 than the full range has at most over all n. The two ends of an asymmetric
    range shrink together by such shares first, and are then moved one by one, twice. No step is worse.

    Args:
        values: the constant.
        spec: one with scales of type float32.
        importance: factor of the squared error of each value, in the shape of `values`; None for 1.
    """
    layout, rules = Layout(spec.granularity, values.shape), spec.param_rules()
    factors = None if importance is None else layout.to_rows(importance)
    rows = layout.to_rows(values)
    low, high = (f.reduce(rows, axis=1, initial=0.0).astype(np.float64) for f in (np.minimum, np.maximum))
    amax = np.maximum(-low, high)

    def search(limit: Callable[[Array, slice], tuple[Array, Array]], tried: Sequence[float]) -> None:
        def scales(factor: Array, at: slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
            return choose_qparams(*limit(factor, at), spec.qtype, spec.symmetric, rules)

        ends[:] = limit(_search(rows, scales, spec.qtype, tried, factors), slice(None))

    def shrink(factor: Array, at: slice) -> tuple[Array, Array]:
        if not spec.symmetric:
            return low[at] * factor, high[at] * factor
        return np.maximum(low[at], -amax[at] * factor), np.minimum(high[at], amax[at] * factor)

    ends = np.stack([low, high])
    search(shrink, _shares(spec.qtype, rows.shape[1]))
    if not spec.symmetric:
        for _ in range(2):
            search(lambda factor, at: (np.maximum(ends[0, at] * factor, low[at]), ends[1, at]), _MOVES)
            search(lambda factor, at: (ends[0, at], np.minimum(ends[1, at] * factor, high[at])), _MOVES)
    return ends[0].reshape(layout.scale_shape), ends[1].reshape(layout.scale_shape)


def least_error_scales(
    values: NDArray[np.float32],
    rule: ScaleRule,
    granularity: Granularity,
    importance: NDArray[np.float32] | None = None,
) -> Scales:
    """Return `choose_scales` of the factors of each block's largest magnitude that have least squared error.

    e8m0 tries the next power of two as well, which saturates nothing, and the one below. e4m3 tries shares as
    `least_error_ranges` does, and one and a half times the magnitude: the largest value is then 4 and not 6,
    between which float4e2m1 has no number. Four over Six (Cook et al., 2025) chooses between these two. All
    blocks share one global scale, with HEADROOM unless it is given. `importance` is as in
    `least_error_ranges`.
    """
    if rule.scale_type == "e4m3" and rule.global_scale is None:
        largest = float(np.abs(values).max(initial=0.0))
        rule = rule._replace(global_scale=global_scale_of(largest, rule.qtype, HEADROOM))
    whole, layout = choose_scales(values, rule, granularity), Layout(granularity, values.shape)
    rows, factors = layout.to_rows(values), None if importance is None else layout.to_rows(importance)
    amax = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)

    def scales(factor: Array, at: slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
        made = choose_scales((amax[at] * factor).astype(np.float32), rule, Granularity(axis=0))
        return made.scale, made.zero_point

    grid, powers = element_grid(rule.qtype, rule.scale_type), rule.scale_type == "e8m0"
    tried = (2.0, 0.5) if powers else (1.5, 1.25, *_shares(grid, rows.shape[1]))
    factor = _search(rows, scales, grid, tried, factors, fine=not powers)
    return whole._replace(scale=scales(factor, slice(None))[0].reshape(whole.scale.shape))


def _shares(qtype: QType, count: int) -> Sequence[float]:
    # A value rounds by at most half a step; for floats by half a step of their largest numbers.
    half = 0.5 / qtype.qmax if qtype.layout is None else 2.0 ** -(qtype.layout.mantissa_bits + 1)
    least = max(1.0 - sqrt(count) * half, 2.0**-7)
    shares: Sequence[float] = np.linspace(1.0, least, COARSE + 1)[1:].tolist()
    return shares


def _search(
    rows: NDArray[np.float32],
    scales: _Scales,
    qtype: QType,
    tried: Sequence[float],
    factors: NDArray[np.float32] | None = None,
    fine: bool = True,
) -> Array:
    """Return the factor of least squared error for each row: 1, of `tried`, or finer ones around those."""
    best = np.ones(len(rows))
    step, places = abs(tried[-1] - tried[-2]) / (FINE + 1), (*range(-FINE, 0), *range(1, FINE + 1))
    at_once = max(_AT_ONCE // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), at_once):
        at = slice(start, start + at_once)
        part, found, least = rows[at], best[at], np.full(len(rows[at]), np.inf)
        for is_fine in (False, True) if fine else (False,):
            centre = found.copy()  # the first pass has found it
            for one in places if is_fine else (1.0, *tried):
                factor = np.maximum(centre + one * step, step) if is_fine else np.full(len(part), one)
                given = scales(factor, at)
                rounded = fake_quantize(part, *given, qtype=qtype, granularity=Granularity(axis=0))
                rounded -= part
                with np.errstate(over="ignore", invalid="ignore"):  # an error beyond float32 is not the least
                    np.square(rounded, out=rounded)
                    if factors is not None:
                        rounded *= factors[at]
                error = np.add.reduce(rounded, axis=1, dtype=np.float64)
                np.copyto(found, factor, where=error < least)
                np.fmin(least, error, out=least)
    return best
