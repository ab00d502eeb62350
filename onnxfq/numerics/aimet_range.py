"""AIMET's derivation of a range: shifted so that zero is on the grid, `adjust_min_max`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxfq.errors import SpecError
from onnxfq.numerics.qparams import MIN_SCALE, check_ranges, check_symmetry
from onnxfq.numerics.qtypes import QType

_Range = tuple[NDArray[np.float32], NDArray[np.float32]]


def adjust_min_max(rmin: ArrayLike, rmax: ArrayLike, qtype: QType, symmetric: bool) -> _Range:
    """Return (rmin, rmax) float32 as AIMET would encode them: the ends of the grid itself.

    asymmetric: the range is widened to hold 0, delta = (rmax - rmin) / (2^bits - 1) in float32,
    offset = round(rmin / delta), rmin = offset * delta, rmax = rmin + (2^bits - 1) * delta.
    symmetric: delta = amax / qmax, rmin = qmin * delta, rmax = qmax * delta. AIMET's strict symmetric is
    a qtype without its lowest number, as int8[-127,127]; its unsigned symmetric is an unsigned qtype with
    symmetric, for values that are not negative. A range of zero width gets delta 1, as in `choose_qparams`.

    Source: AIMET's StaticEncodingAnalyzer and aimet_torch.quantization.affine (Qualcomm, BSD-3-Clause).
    Raises SpecError as `choose_qparams` does, and for an unsigned symmetric range below 0.
    """
    low, high = np.asarray(rmin, np.float64), np.asarray(rmax, np.float64)
    check_ranges(low, high)
    unsigned = symmetric and qtype.qmin == 0 and not qtype.is_float
    if unsigned and (low < 0.0).any():
        raise SpecError(
            f"unsigned symmetric {qtype} holds no negative numbers, the range starts at {low.min():g}; "
            f"use int{qtype.bits}"
        )
    if not unsigned:
        check_symmetry(qtype, symmetric)
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if symmetric:
        largest = qtype.qmax if unsigned else min(qtype.qmax, -qtype.qmin)
        delta = _delta(np.maximum(-low, high) / largest)
        return np.float32(qtype.qmin) * delta, np.float32(qtype.qmax) * delta
    steps = qtype.qmax - qtype.qmin
    delta = _delta((high - low) / steps)
    offset = np.clip(np.rint(low.astype(np.float32) / delta), np.float32(-steps), np.float32(0))
    return offset * delta, (offset + np.float32(steps)) * delta


def _delta(width: NDArray[np.float64]) -> NDArray[np.float32]:
    limited = np.where(width == 0.0, 1.0, np.maximum(width, MIN_SCALE))
    return np.asarray(limited, np.float32)
