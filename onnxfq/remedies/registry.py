"""`REMEDIES`: what `quantize` tries for a loss, in this order; a new remedy is a file and a line here."""

from __future__ import annotations

from onnxfq.judging.judge import Remedy
from onnxfq.remedies.calibrator_search import CALIBRATOR
from onnxfq.remedies.center import CENTER
from onnxfq.remedies.correct_biases import BIASES
from onnxfq.remedies.equalize_search import EQUALIZE, SMOOTH
from onnxfq.remedies.mixed_precision import PROTECT, TARGET
from onnxfq.remedies.rounding_search import ROUNDING
from onnxfq.remedies.sample_search import SAMPLES
from onnxfq.remedies.widen_activations import WIDEN

REMEDIES: tuple[Remedy, ...] = (
    SAMPLES,
    EQUALIZE,
    CALIBRATOR,
    CENTER,
    ROUNDING,
    SMOOTH,
    WIDEN,
    PROTECT,
    TARGET,
    BIASES,
)
"""The first five cost nothing at run time, smoothing costs no layer, wide formats and layers in float do."""
