"""GPTQ: rounding of weights by the second moments of their inputs.

Inputs are rounded one after the other, the ones of largest second moment first. The inputs that follow make
up for what each one loses, as far as they are correlated.

Source: Frantar et al., GPTQ (2023), with act-order and static groups of its implementation. The error after
rounding all inputs, for the inverse Hessian U^T U, is the sum over columns of ((w - q) / U_jj)^2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.weights.grid import Grid, Matrices

DAMPING = 0.01
"""Share of the mean diagonal that is added to the diagonal of a matrix of moments."""

BLOCK = 128
"""Columns whose errors reach the columns after them in one product."""


def damp(moments: Matrices) -> Matrices:
    """Return `moments` with DAMPING added, so that they are positive definite.

    An input that was always 0 gets the same floor as the others. Without any moments the result is the unit
    matrix.
    """
    count = moments.shape[-1]
    mean = np.trace(moments, axis1=-2, axis2=-1) / count
    floor = np.where(mean > 0, DAMPING * mean, 1.0)
    return np.asarray(moments + floor[:, None, None] * np.eye(count))


class Factor(NamedTuple):
    """Factors of damped moments, shared by all weights with these inputs.

    Attributes:
        order: inputs in the order of rounding, [groups, inputs].
        upper: U with U^T U = H^-1 in this order, [groups, inputs, inputs].
    """

    order: NDArray[np.int64]
    upper: Matrices


def factorize(moments: Matrices) -> Factor:
    """Return the factors of `moments`, the sum of x x^T over the inputs x, [groups, inputs, inputs]."""
    damped = damp(moments)
    order = np.argsort(-np.diagonal(damped, axis1=1, axis2=2), axis=1, kind="stable")
    damped = np.take_along_axis(damped, order[:, None, :], axis=2)
    return Factor(order, _inverse_factor(np.take_along_axis(damped, order[:, :, None], axis=1)))


def round_columns(weights: Matrices, grid: Grid, moments: Factor) -> Matrices:
    """Return `weights` on `grid` with a small error of the outputs.

    Args:
        weights: [groups, outputs, inputs].
        grid: of these weights.
        moments: of the inputs, from `factorize`.
    """
    order, factor = moments
    at = order[:, None, :]
    w, sorted_grid = np.take_along_axis(weights, at, axis=2), grid.take(order)
    rounded, count = np.empty_like(w), w.shape[2]
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        errors = np.empty((*w.shape[:2], stop - start))
        for j in range(start, stop):
            rounded[..., j] = sorted_grid.round(w[..., j], j)
            lost = (w[..., j] - rounded[..., j]) / factor[:, j, j, None]
            errors[..., j - start] = lost
            w[..., j + 1 : stop] -= lost[..., None] * factor[:, None, j, j + 1 : stop]
        w[..., stop:] -= errors @ factor[:, start:stop, stop:]
    result = np.empty_like(rounded)
    np.put_along_axis(result, at, rounded, axis=2)
    return result


def _inverse_factor(damped: Matrices) -> Matrices:
    """Return the upper triangular U with U^T U = damped^-1."""
    # Reversed, the lower factor becomes an upper one R with R R^T = damped, and U = R^-1.
    upper = np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.triu(np.linalg.inv(upper))
