"""`pytorch_quantization.nn.modules`: one file for each kind of layer, as users import them."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
from onnxfq.torch.compat.nvidia.nn.modules import _utils as _utils
from onnxfq.torch.compat.nvidia.nn.modules import clip as clip
from onnxfq.torch.compat.nvidia.nn.modules import quant_conv as quant_conv
from onnxfq.torch.compat.nvidia.nn.modules import quant_instancenorm as quant_instancenorm
from onnxfq.torch.compat.nvidia.nn.modules import quant_linear as quant_linear
from onnxfq.torch.compat.nvidia.nn.modules import quant_pooling as quant_pooling
from onnxfq.torch.compat.nvidia.nn.modules import quant_rnn as quant_rnn
from onnxfq.torch.compat.nvidia.nn.modules import tensor_quantizer as tensor_quantizer
