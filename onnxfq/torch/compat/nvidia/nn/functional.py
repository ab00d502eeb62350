"""`pytorch_quantization.nn.functional`: clipping."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.clip import clip as clip
