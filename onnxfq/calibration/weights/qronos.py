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

import numpy as np

from onnxfq.calibration.weights.gptq import damp
from onnxfq.calibration.weights.grid import Floats, Matrices
from onnxfq.calibration.weights.moments import InputMoments


def correct_weights(weights: Floats, moments: InputMoments) -> Floats:
    """Return W + s W (C - G) (G + d)^-1, with s from 0 to 1 as the halves confirm it; 1 without halves.

    Args:
        weights: W, [groups, outputs, inputs].
        moments: of the inputs; W is returned for moments of the float model alone.
    """
    if moments.quantized is None or moments.cross is None:
        return weights
    whole = moments.quantized
    wanted = weights @ (moments.cross - whole)
    change = _solve(whole, wanted)
    if moments.half is None:
        return weights + change
    half = moments.half[0]()
    of_half = weights @ (moments.half[1]() - half)
    of_rest = wanted - of_half
    first, second = _solve(half, of_half), _solve(whole - half, of_rest)
    gain = float((first * of_rest + second * of_half).sum())
    power = float(((first @ whole - first @ half) * first + second @ half * second).sum())
    shared = min(max(gain, 0.0) / power, 1.0) if power > 0 else 0.0
    return weights + 2 * shared / (1 + shared) * change


def _solve(quantized: Matrices, wanted: Floats) -> Floats:
    """Return `wanted` (G + d)^-1."""
    return np.swapaxes(np.linalg.solve(damp(quantized), np.swapaxes(wanted, 1, 2)), 1, 2)
