"""`pytorch_quantization.nn`: quantized layers, under their names with and without Quant."""

from __future__ import annotations

import sys
from typing import Any

from onnxfq.errors import nearest
from onnxfq.torch.compat.nvidia import clip as functional
from onnxfq.torch.compat.nvidia import layers, lstm, tensor_quantizer
from onnxfq.torch.compat.nvidia.clip import Clip
from onnxfq.torch.compat.nvidia.lstm import QuantLSTM, QuantLSTMCell
from onnxfq.torch.compat.nvidia.tensor_quantizer import TensorQuantizer

LAYERS: dict[str, type] = {made.__name__: made for made in (*layers.CLASSES, QuantLSTM, QuantLSTMCell)}
_FLOAT_ONLY = ("InstanceNorm",)  # the original has no name without Quant for them
ALIASES = {
    name.removeprefix("Quant"): made for name, made in LAYERS.items() if not name[5:].startswith(_FLOAT_ONLY)
}
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
    for names in (LAYERS, ALIASES, MODULES):
        if name in names:
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, [*LAYERS, *ALIASES])}")


__all__ = ["Clip", "TensorQuantizer", *LAYERS, *ALIASES]
