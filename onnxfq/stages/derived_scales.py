"""Encodings whose scales a rule makes, not a calibrator: MX and NVFP4 weights, dynamic activations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxfq.calibration.statistics import TensorStatistics
from onnxfq.documents.encodings import Encoding
from onnxfq.documents.plan import Placement
from onnxfq.numerics.block_scales import ScaleRule, choose_scales, global_scale_of


def encode_constant(placement: Placement, values: NDArray[np.float32]) -> Encoding:
    """Return the encoding of an e8m0 or e4m3 weight: what `dynamic_fake_quantize` rounds it with."""
    spec = placement.spec
    made = choose_scales(values, ScaleRule(spec.qtype, spec.scale_type), spec.granularity)
    return placement.encode(made.scale, made.zero_point, made.global_scale)


def encode_dynamic(placement: Placement, observed: TensorStatistics | None = None) -> Encoding:
    """Return the encoding of a dynamic activation; scale_type e4m3 takes its global scale from `observed`."""
    spec = placement.spec
    if observed is None:
        return Encoding.of_running_model(placement.tensor, spec)
    amax = max(-observed.rmin, observed.rmax)
    return Encoding.of_running_model(placement.tensor, spec, global_scale_of(amax, spec.qtype))
