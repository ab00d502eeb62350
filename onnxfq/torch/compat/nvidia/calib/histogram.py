"""`pytorch_quantization.calib.histogram`: an amax from counted magnitudes."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.calibrators import HistogramCalibrator as HistogramCalibrator
from onnxfq.torch.compat.nvidia.calibrators import calibrate_weights as calibrate_weights
