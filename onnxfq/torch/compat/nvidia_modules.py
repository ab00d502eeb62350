"""NVIDIA's document, pytorch-quantization: quantized layers."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from onnxfq.torch.compat.nvidia_descriptor import QuantDescriptor
from onnxfq.torch.compat.nvidia_quantizer import TensorQuantizer
from onnxfq.torch.layers import swap


class QuantInput:
    """Layer whose input is quantized."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QuantDescriptor()

    def __init__(self, *args: Any, quant_desc_input: QuantDescriptor | None = None, **keywords: Any) -> None:
        """Take the arguments of the float layer, and a descriptor."""
        super().__init__(*args, **keywords)
        self.input_quantizer = TensorQuantizer(quant_desc_input or self.default_quant_desc_input)

    def forward(self, input: Tensor) -> Tensor:
        """Quantize the input and run the float layer."""
        y: Tensor = super().forward(self.input_quantizer(input))  # type: ignore[misc]
        return y


class QuantWeighted:
    """Layer whose input and weight are quantized."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QuantDescriptor()
    default_quant_desc_weight: ClassVar[QuantDescriptor] = QuantDescriptor(axis=0)

    def __init__(
        self, *args: Any, quant_desc_input: QuantDescriptor | None = None,
        quant_desc_weight: QuantDescriptor | None = None, **keywords: Any,
    ) -> None:  # fmt: skip
        """Take the arguments of the float layer, and two descriptors."""
        super().__init__(*args, **keywords)
        first = TensorQuantizer(quant_desc_input or self.default_quant_desc_input)
        second = TensorQuantizer(quant_desc_weight or self.default_quant_desc_weight)
        swap(self, {"input": first, "weight": second})


FLOAT = {base: getattr(nn, base) for base in (
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    *("MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d"),
    *("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"),
    *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "GroupNorm"),
)}  # fmt: skip


def _make(name: str) -> type[nn.Module]:
    mixin = QuantInput if "Pool" in name or "Norm" in name else QuantWeighted
    body: dict[str, Any] = {"__doc__": f"Quantized {name}.", "__module__": __name__}
    if "Transpose" in name:
        body["default_quant_desc_weight"] = QuantDescriptor(axis=1)
    return type("Quant" + name, (mixin, FLOAT[name]), body)


QUANTIZED = {name: _make(name) for name in FLOAT}
