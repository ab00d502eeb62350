"""`pytorch_quantization.nn.modules.quant_pooling`: poolings."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
