"""Qronos: the weights that make up for errors of a layer's inputs, before they are rounded.

With inputs x of the float model and z of the quantized one, the weights V of least error |W x - V z|^2 are
W C (G + d)^-1, where C = sum of x z^T, G = sum of z z^T and d is a damping, here towards W. GPTQ then rounds
V by G.

Sources: Zhang et al., Qronos (2025); Li et al., GPTAQ (2025).
"""

from __future__ import annotations

import numpy as np

from onnxfq.calibration.weights.gptq import damp
from onnxfq.calibration.weights.grid import Floats, Matrices


def correct_weights(weights: Floats, quantized: Matrices, cross: Matrices) -> Matrices:
    """Return W + W (C - G) (G + d)^-1.

    Args:
        weights: W, [groups, outputs, inputs].
        quantized: G, [groups, inputs, inputs].
        cross: C, of that shape.
    """
    change = np.linalg.solve(damp(quantized), np.swapaxes(weights @ (cross - quantized), 1, 2))
    return np.asarray(weights + np.swapaxes(change, 1, 2))
