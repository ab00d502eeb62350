"""`pytorch_quantization.nn.modules.quant_conv`: convolutions."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
