"""GPTQ: rounding of weights by the second moments of their inputs.

Inputs are rounded one after the other, the ones of largest second moment first. The inputs that follow make
up for what each one loses, as far as they are correlated.

Source: Frantar et al., GPTQ (2023), with act-order and static groups of its implementation, in the equal form
of Chee et al., QuIP (2023), LDLQ, which needs no inverse: with H = (1 + F) D (1 + F)^T and F strictly upper
triangular, the error e H e^T of a row is the sum over columns of D_j (e_j + sum over i < j of e_i F_ij)^2, so
that column j rounds w_j + sum over i < j of e_i F_ij. The sum is known behind the last column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.weights.grid import Matrices, WeightGrid, split_outputs

DAMPING = 0.01
"""Least share of the mean diagonal that is added to the diagonal of a matrix of moments."""

MOST_SHRINKAGE = 0.99
"""Most of the way from moments to a multiple of the unit matrix."""

BLOCK = 64
"""Columns that the errors of all columns before them reach in one product."""


def damp(moments: Matrices, rows: int = 0) -> Matrices:
    """Return `moments` with a share of their mean diagonal added, so that they are positive definite.

    The share is DAMPING at least. Few rows need more, so that their moments come near the moments of all.
    An input that was always 0 gets the same floor as the others. Without any moments the result is the unit
    matrix.

    Source of that share: oracle approximating shrinkage, in Chen et al., Shrinkage algorithms for MMSE
    covariance estimation (2010), equation 23.

    Args:
        moments: [groups, inputs, inputs].
        rows: number of inputs in the sums; 0 if it is not known.
    """
    damped, count = moments.copy(), moments.shape[-1]
    trace = np.trace(moments, axis1=-2, axis2=-1)
    share = np.full_like(trace, DAMPING)
    if rows:
        power, squared = np.einsum("gij,gij->g", moments, moments), trace**2
        wanted = (1 - 2 / count) * power + squared
        others = (rows + 1 - 2 / count) * (power - squared / count)
        shrinkage = np.minimum(wanted / np.where(others > 0, others, np.inf), MOST_SHRINKAGE)
        share = np.maximum(share, shrinkage / (1 - shrinkage))
    np.einsum("gii->gi", damped)[...] += np.where(trace > 0, share * trace / count, 1.0)[:, None]
    return damped


class Factor(NamedTuple):
    """Factors of damped moments, shared by all weights with these inputs.

    Attributes:
        order: inputs in the order of rounding, [groups, inputs].
        feedback: F in this order, with ones on its diagonal, [groups, inputs, inputs].
        pivots: D in this order, [groups, inputs].
        added: to the diagonal of the moments, [groups].
    """

    order: NDArray[np.int64]
    feedback: NDArray[np.float32]
    pivots: Matrices
    added: NDArray[np.float64]


def factorize(moments: Matrices, rows: int = 0) -> Factor:
    """Return the factors of `moments`, the sum of x x^T over the inputs x, damped as `damp` says."""
    damped = damp(moments, rows)
    added = damped[:, 0, 0] - moments[:, 0, 0]
    order = np.argsort(-np.diagonal(damped, axis1=1, axis2=2), axis=1, kind="stable")
    last_first = order[:, ::-1]
    at = np.arange(len(damped))[:, None, None], last_first[:, :, None], last_first[:, None, :]
    upper = np.linalg.cholesky(damped[at])[:, ::-1, ::-1]  # reversed, the lower factor becomes an upper one
    roots = np.diagonal(upper, axis1=1, axis2=2)
    return Factor(order, (upper / roots[:, None]).astype(np.float32), roots**2, added)


def round_columns(
    weights: NDArray[np.float32], grid: WeightGrid, moments: Factor
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return `weights` on `grid` with a small error of the outputs, and that error e H e^T of each output.

    Args:
        weights: [groups, outputs, inputs].
        grid: of these weights.
        moments: of the inputs, from `factorize`.
    """
    result, at = np.empty(weights.shape, np.float32), moments.order[:, None, :]
    errors = np.empty(weights.shape[:2])
    for part in split_outputs(weights.shape):
        w = np.ascontiguousarray(np.take_along_axis(weights[:, part], at, axis=2).swapaxes(1, 2))
        rounded, errors[:, part] = _round_sorted(w, grid.sort(part, at), moments)
        np.put_along_axis(result[:, part], at, rounded.swapaxes(1, 2), axis=2)
    return result, errors


def _round_sorted(
    w: NDArray[np.float32], grid: WeightGrid, moments: Factor
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return `w` rounded one input after the other; `w` and `grid` are [groups, inputs, outputs]."""
    rounded, lost, count = np.empty_like(w), np.empty_like(w), w.shape[1]
    feedback, errors = moments.feedback, np.zeros((len(w), w.shape[2]))
    for start in range(0, count, BLOCK):
        part = slice(start, min(start + BLOCK, count))
        target = w[:, part] + feedback[:, :start, part].swapaxes(1, 2) @ lost[:, :start]
        for j in range(start, part.stop):
            target[:, j - start] += (feedback[:, None, start:j, j] @ lost[:, start:j])[:, 0]
            rounded[:, j] = grid.round(target[:, j - start], (slice(None), j))
            np.subtract(w[:, j], rounded[:, j], out=lost[:, j])
        target -= rounded[:, part]
        errors += np.einsum("gj,gjo,gjo->go", moments.pivots[:, part], target, target)
    # The damping's share of the sum belongs to no output.
    errors -= moments.added[:, None] * np.einsum("gjo,gjo->go", lost, lost, dtype=np.float64)
    return rounded, np.maximum(errors, 0.0)
