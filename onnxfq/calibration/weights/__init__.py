"""Rounding of weights: one method a file."""

from __future__ import annotations

from onnxfq.calibration.statistics.input_view import InputView
from onnxfq.calibration.weights.methods import METHODS, RoundedWeight, RoundingJob, round_weight
from onnxfq.calibration.weights.moments import InputMoments
from onnxfq.calibration.weights.moments_file import Moments
from onnxfq.calibration.weights.view import MatrixView

__all__ = [
    "METHODS",
    "InputMoments",
    "InputView",
    "MatrixView",
    "Moments",
    "RoundedWeight",
    "RoundingJob",
    "round_weight",
]
