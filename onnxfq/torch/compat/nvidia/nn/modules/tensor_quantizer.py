"""`pytorch_quantization.nn.modules.tensor_quantizer`: the quantizer of a tensor."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer as TensorQuantizer
