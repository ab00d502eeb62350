"""Scale and zero point of equalized channels: scales that differ by powers of two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfq.numerics.qparams import choose_qparams
from onnxfq.numerics.spec import QuantSpec

MOST_OCTAVES = 12
"""Largest power of two by which a channel is multiplied; smaller channels have a coarser grid."""


def choose_equalized_qparams(
    ranges: NDArray[np.float32], spec: QuantSpec
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return scale float32 [C] and zero point [C] of channels with `ranges` [C, 2].

    Channel c is multiplied by the largest power of two, up to 2^MOST_OCTAVES, that keeps its magnitudes
    within the largest channel. The products lie in one range; its scale, divided by the channel's power of
    two, is the scale of the channel. Therefore no observed value saturates, and a symmetric step of int8 is
    less than 2 * 128 / 127 of the step of a per-channel grid. A channel that was always 0 keeps the common
    scale.

    Cross-layer equalization has the same purpose (M. Nagel et al., "Data-Free Quantization Through Weight
    Equalization and Bias Correction", 2019). Here it is for activations only: the weights of a depthwise
    convolution have a scale for each channel and lose nothing.
    """
    ends = np.where(np.isfinite(ranges), ranges, 0.0).astype(np.float64)
    low, high = np.minimum(ends[:, 0], 0.0), np.maximum(ends[:, 1], 0.0)
    octaves = _octaves(np.maximum(-low, high))
    rmin, rmax = (np.ldexp(low, octaves).min(initial=0.0), np.ldexp(high, octaves).max(initial=0.0))
    rules = spec.param_rules()
    common, zero_point = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules)
    scale = np.ldexp(common.astype(np.float32), -octaves)
    if scale.min(initial=np.inf) < np.finfo(np.float32).tiny:  # too small to divide without rounding
        rmin, rmax = low.min(initial=0.0), high.max(initial=0.0)
        common, zero_point = choose_qparams(rmin, rmax, spec.qtype, spec.symmetric, rules)
        scale = np.full(len(ranges), common, np.float32)
    return scale.astype(np.float32), np.full(len(ranges), zero_point)


def _octaves(amax: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return floor(log2(largest / amax)) of each channel, exact, from 0 to MOST_OCTAVES; 0 if amax is 0."""
    mantissa, exponent = np.frexp(amax)
    top, reach = np.frexp(amax.max(initial=0.0))
    octaves = np.clip(reach - exponent - (mantissa > top), 0, MOST_OCTAVES)
    return np.asarray(np.where(amax > 0.0, octaves, 0), np.int64)
