"""pytorch-quantization: its names and paths, with this package in the place of `pytorch_quantization`.

Users import `nn`, `calib`, `quant_modules` and `tensor_quant` from here, or use the original's deeper paths,
such as `nn.modules.quant_conv`. Their classes are names of this package, too.
"""

from __future__ import annotations

from typing import Any

from onnxfq.torch.compat.nvidia import calib, layers, nn, quant_modules, tensor_quant, utils
from onnxfq.torch.compat.nvidia import optim as optim
from onnxfq.torch.compat.nvidia.calib import HistogramCalibrator, MaxCalibrator, calibrate_weights
from onnxfq.torch.compat.nvidia.clip import Clip
from onnxfq.torch.compat.nvidia.descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia.lstm import QuantLSTM, QuantLSTMCell
from onnxfq.torch.compat.nvidia.optim import helper
from onnxfq.torch.compat.nvidia.quant_modules import deactivate, enable_onnx_export, initialize
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer


def __getattr__(name: str) -> Any:
    """Return a quantized layer, such as QuantConv2d."""
    return getattr(layers, name)


__all__ = [
    "Clip",
    "HistogramCalibrator",
    "MaxCalibrator",
    "QuantDescriptor",
    "TensorQuantizer",
    "calib",
    "calibrate_weights",
    "deactivate",
    "enable_onnx_export",
    "helper",
    "initialize",
    "nn",
    "quant_modules",
    "tensor_quant",
    "utils",
    "QuantLSTM",
    "QuantLSTMCell",
    *layers.LAYERS,
]
