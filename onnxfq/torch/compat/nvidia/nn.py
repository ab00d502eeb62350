"""`pytorch_quantization.nn`: quantized layers, under their names with and without Quant."""

from __future__ import annotations

import sys
from typing import Any

from onnxfq.torch.compat.nvidia import clip as functional
from onnxfq.torch.compat.nvidia import layers, lstm, tensor_quantizer
from onnxfq.torch.compat.nvidia.clip import Clip
from onnxfq.torch.compat.nvidia.lstm import LSTM, LSTMCell, QuantLSTM, QuantLSTMCell
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer

MODULES: dict[str, Any] = {
    "_utils": layers,
    "clip": functional,
    "quant_conv": layers,
    "quant_instancenorm": layers,
    "quant_linear": layers,
    "quant_pooling": layers,
    "quant_rnn": lstm,
    "tensor_quantizer": tensor_quantizer,
}
"""Files of `pytorch_quantization.nn.modules`, by name: which file here has their classes."""

modules = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    """Return a layer or one of `MODULES`."""
    return MODULES[name] if name in MODULES else getattr(layers, name)


__all__ = ["Clip", "LSTM", "LSTMCell", "QuantLSTM", "QuantLSTMCell", "TensorQuantizer", *layers.NAMES]
