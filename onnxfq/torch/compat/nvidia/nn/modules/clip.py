"""`pytorch_quantization.nn.modules.clip`: clipping by learned ends."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.clip import Clip as Clip
from onnxfq.torch.compat.nvidia.clip import clip as clip
