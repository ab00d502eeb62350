"""`pytorch_quantization.nn.modules._utils`: the descriptors of a layer's quantizers."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.layers import QuantInputMixin as QuantInputMixin
from onnxfq.torch.compat.nvidia.layers import QuantMixin as QuantMixin
from onnxfq.torch.compat.nvidia.layers import pop_quant_desc_in_kwargs as pop_quant_desc_in_kwargs
