"""`pytorch_quantization.nn`: quantized layers, under their names with and without Quant."""

from __future__ import annotations

from onnxfq.torch.compat.nvidia import layers
from onnxfq.torch.compat.nvidia.clip import Clip
from onnxfq.torch.compat.nvidia.layers import __getattr__ as __getattr__
from onnxfq.torch.compat.nvidia.lstm import LSTM, LSTMCell, QuantLSTM, QuantLSTMCell
from onnxfq.torch.compat.nvidia.nn import functional as functional
from onnxfq.torch.compat.nvidia.nn import modules as modules
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer

__all__ = ["Clip", "LSTM", "LSTMCell", "QuantLSTM", "QuantLSTMCell", "TensorQuantizer", *layers.NAMES]
