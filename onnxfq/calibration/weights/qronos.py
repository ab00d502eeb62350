"""Qronos: the weights that make up for errors of a layer's inputs, before they are rounded.

With inputs x of the float model and z of the quantized one, the weights V of least error |W x - V z|^2 are
W C (G + d)^-1, where C = sum of x z^T, G = sum of z z^T and d is a damping, here towards W. GPTQ then rounds
V by G.

That error is one of the samples that are seen. Over few rows, and over many that are alike, V follows their
noise: in ResNet-20 most layers lose by it on other samples. The change is also found for each half of the
samples, and is scaled by what these two changes take away on the other half.

Sources: Zhang et al., Qronos (2025); Li et al., GPTAQ (2025). The scale of a half is the least-squares factor
of predictions by twofold cross-validation: Stone, Cross-validatory choice and assessment of statistical
predictions (1974). All samples have half of the noise: the formula of Spearman and Brown (1910).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.weights.gptq import BLOCK, damp
from onnxfq.calibration.weights.grid import Floats, Matrices
from onnxfq.calibration.weights.moments import InputMoments, Residual

AnyFloats = TypeVar("AnyFloats", Matrices, NDArray[np.float32])


def find_change(weights: Floats, moments: InputMoments, residual: Residual) -> Matrices | None:
    """Return s W (C - G) (G + d)^-1, with s from 0 to 1 as the halves confirm it; 1 without halves.

    Args:
        weights: W, [groups, outputs, inputs].
        moments: of the inputs; nothing is returned for moments of the float model alone.
        residual: of W, whose slope is W (C - G).
    """
    wanted, whole = residual.slope, residual.seen
    if wanted is None:
        return None
    change = _solve(whole, wanted)
    if moments.half is None:
        return change
    half, cross = (one() for one in moments.half)
    # One factor for a whole layer needs no double precision; in units of the mean square nothing overflows.
    unit = np.trace(whole, axis1=1, axis2=2).max() / whole.shape[1] or 1.0
    parts = half, whole - half, cross - half
    half, rest, between = (part / unit for part in parts)
    with np.errstate(over="ignore", invalid="ignore"):  # such weights stay without a change
        of_half = weights.astype(np.float32) @ between.astype(np.float32)
        of_rest = (wanted / unit).astype(np.float32) - of_half
        first, second = _solve(half, of_half), _solve(rest, of_rest)
        gain = float((first * of_rest + second * of_half).sum(dtype=np.float64))
        powers = first @ rest.astype(np.float32) * first + second @ half.astype(np.float32) * second
        power = float(powers.sum(dtype=np.float64))
    is_known = 0 < power < np.inf and np.isfinite(gain)
    shared = min(max(gain, 0.0) / power, 1.0) if is_known else 0.0
    return 2 * shared / (1 + shared) * change


def _solve(quantized: Matrices, wanted: AnyFloats) -> AnyFloats:
    """Return `wanted` (G + d)^-1, in the precision of `wanted`."""
    lower = np.linalg.cholesky(damp(quantized)).astype(wanted.dtype)
    found, starts = wanted.copy(), range(0, lower.shape[1], BLOCK)
    parts = [slice(start, start + BLOCK) for start in starts]
    inverses = [np.linalg.inv(lower[:, part, part]) for part in parts]
    for part, inverse in zip(parts, inverses, strict=True):
        found[..., part] -= found[..., : part.start] @ lower[:, part, : part.start].swapaxes(1, 2)
        found[..., part] = found[..., part] @ inverse.swapaxes(1, 2)
    for part, inverse in zip(parts[::-1], inverses[::-1], strict=True):
        found[..., part] -= found[..., part.stop :] @ lower[:, part.stop :, part]
        found[..., part] = found[..., part] @ inverse
    return found
