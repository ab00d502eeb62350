"""GPTQ: rounding of weights by the second moments of their inputs.

Inputs are rounded one after the other, the ones of largest second moment first. The inputs that follow make
up for what each one loses, as far as they are correlated.

Source: Frantar et al., GPTQ (2023), with act-order and static groups of its implementation. The error after
rounding all inputs, for the inverse Hessian U^T U, is the sum over columns of ((w - q) / U_jj)^2.
"""

from __future__ import annotations

import numpy as np

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


def round_columns(weights: Matrices, grid: Grid, moments: Matrices) -> Matrices:
    """Return `weights` on `grid` with a small error of the outputs.

    Args:
        weights: [groups, outputs, inputs].
        grid: of these weights.
        moments: sum of x x^T over the inputs x, [groups, inputs, inputs].
    """
    damped = damp(moments)
    diagonal = np.diagonal(damped, axis1=1, axis2=2)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    at = order[:, None, :]
    w, sorted_grid = np.take_along_axis(weights, at, axis=2), grid.take(order)
    damped = np.take_along_axis(np.take_along_axis(damped, at, axis=2), order[:, :, None], axis=1)
    factor = _inverse_factor(damped)
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
