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
    sums = moments.quantized, moments.cross
    change = _fit(weights, *sums)
    if moments.half is None:
        return weights + change
    half, gain, power = moments.half, 0.0, 0.0
    other = sums[0] - half[0], sums[1] - half[1]
    for seen, unseen in ((half, other), (other, half)):
        guess = _fit(weights, *seen)
        gain += float(np.vdot(guess, weights @ (unseen[1] - unseen[0])))
        power += float(np.vdot(guess @ unseen[0], guess))
    shared = min(max(gain, 0.0) / power, 1.0) if power > 0 else 0.0
    return weights + 2 * shared / (1 + shared) * change


def _fit(weights: Floats, quantized: Matrices, cross: Matrices) -> Matrices:
    change = np.linalg.solve(damp(quantized), np.swapaxes(weights @ (cross - quantized), 1, 2))
    return np.swapaxes(change, 1, 2)
