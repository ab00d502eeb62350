"""`pytorch_quantization.nn.modules.quant_linear`: linear layers."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
