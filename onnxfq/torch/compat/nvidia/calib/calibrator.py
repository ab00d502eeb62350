"""`pytorch_quantization.calib.calibrator`: what all calibrators are."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.calibrators import _Calibrator as _Calibrator
