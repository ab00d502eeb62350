"""AIMET's document: tensors that carry their encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxfq.torch.quantizer import FakeQuantize


@dataclass(frozen=True)
class AffineEncoding:
    """Encoding of a tensor.

    Attributes:
        scale: float32, in the quantizer's shape.
        offset: minus the zero point.
        bitwidth: width of the integers.
        symmetric: whether the offset is fixed.
        quantizer: the quantizer that made the tensor.
        centre: what is added to its integers; not 0 for unsigned symmetric ones.
    """

    scale: Tensor
    offset: Tensor
    bitwidth: int
    symmetric: bool
    quantizer: FakeQuantize
    centre: int = 0


class _Encoded(Tensor):
    """Tensor with an encoding; results of operations are plain tensors, which have none."""

    encoding: AffineEncoding
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, values: Tensor, encoding: AffineEncoding) -> Any:
        """Return `values` with an encoding; the gradient passes."""
        made = values.as_subclass(cls)
        made.encoding = encoding
        return made


def plain(x: Tensor) -> Tensor:
    """Return x without an encoding."""
    return x.as_subclass(Tensor) if isinstance(x, _Encoded) else x


class QuantizedTensor(_Encoded):
    """Integers, as floats like AIMET's."""

    def quantize(self) -> QuantizedTensor:
        """Return itself."""
        return self

    def dequantize(self) -> DequantizedTensor:
        """Return the values of the integers."""
        values = self.encoding.quantizer.dequantize(self.as_subclass(Tensor) - self.encoding.centre)
        made: DequantizedTensor = DequantizedTensor.of(values, self.encoding)
        return made

    def quantized_repr(self) -> Tensor:
        """Return the integers in an integer dtype."""
        plain, encoding = self.as_subclass(Tensor).detach(), self.encoding
        unsigned = encoding.quantizer.quant_min + encoding.centre == 0
        narrow = torch.uint8 if unsigned else torch.int8
        return plain.to(narrow if encoding.bitwidth <= 8 else torch.int32)


class DequantizedTensor(_Encoded):
    """Values of a grid."""

    def quantize(self) -> QuantizedTensor:
        """Return their integers."""
        integers = self.encoding.quantizer.quantize(self.as_subclass(Tensor)).int()
        integers = integers + self.encoding.centre
        made: QuantizedTensor = QuantizedTensor.of(integers.to(self.dtype), self.encoding)
        return made

    def dequantize(self) -> DequantizedTensor:
        """Return itself."""
        return self

    def quantized_repr(self) -> Tensor:
        """Return the integers in an integer dtype."""
        return self.quantize().quantized_repr()
