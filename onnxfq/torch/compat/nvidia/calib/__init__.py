"""`pytorch_quantization.calib`: calibrators, which turn the tensors that they see into an amax."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.calibrators import HistogramCalibrator as HistogramCalibrator
from onnxfq.torch.compat.nvidia.calibrators import MaxCalibrator as MaxCalibrator
from onnxfq.torch.compat.nvidia.calibrators import calibrate_weights as calibrate_weights
