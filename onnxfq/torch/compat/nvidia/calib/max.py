"""`pytorch_quantization.calib.max`: the largest magnitude as amax."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.calibrators import MaxCalibrator as MaxCalibrator
