"""NVIDIA's document, pytorch-quantization: layers, descriptor, calibrators, `initialize`."""

from __future__ import annotations

from typing import Any

from onnxfq.torch.compat.nvidia_descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia_histogram import HistogramCalibrator
from onnxfq.torch.compat.nvidia_initialize import initialize
from onnxfq.torch.compat.nvidia_max import MaxCalibrator
from onnxfq.torch.compat.nvidia_modules import QUANTIZED
from onnxfq.torch.compat.nvidia_quantizer import TensorQuantizer

__all__ = [
    "HistogramCalibrator",
    "MaxCalibrator",
    "QuantDescriptor",
    "TensorQuantizer",
    "initialize",
    *(f"Quant{name}" for name in QUANTIZED),
]


def __getattr__(name: str) -> Any:
    """Return a quantized layer, as QuantConv2d."""
    made = QUANTIZED.get(name.removeprefix("Quant")) if name.startswith("Quant") else None
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made
