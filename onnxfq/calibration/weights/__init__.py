"""Rounding of weights: one method a file."""

from __future__ import annotations

from onnxfq.calibration.statistics.input_view import InputView as InputView
from onnxfq.calibration.weights.methods import METHODS as METHODS
from onnxfq.calibration.weights.methods import RoundedWeight as RoundedWeight
from onnxfq.calibration.weights.methods import RoundingJob as RoundingJob
from onnxfq.calibration.weights.methods import round_weight as round_weight
from onnxfq.calibration.weights.moments import InputMoments as InputMoments
from onnxfq.calibration.weights.moments_file import Moments as Moments
from onnxfq.calibration.weights.view import MatrixView as MatrixView
